"""Certificates that sign themselves, for TLS between processes that know each other."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from astraflow_core.errors import PreflightError

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

_SLACK = datetime.timedelta(days=1)
"""A certificate is valid from this long ago: clocks differ."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that signs itself, and its private key, both in PEM."""

    public: bytes
    key: bytes

    def server_context(self) -> ssl.SSLContext:
        """A TLS context that serves with it. Nothing stays on a disk."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile(prefix="astraflow-") as file:  # mode 0600; ssl reads files
            file.write(self.key + self.public)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def self_signed(hosts: tuple[str, ...], valid: datetime.timedelta) -> Certificate:
    """A certificate of ``hosts``, IP addresses or names, that is valid from now on for the time ``valid``.

    Raises :class:`PreflightError` where the package cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise PreflightError(
            "a certificate for TLS is made with the package cryptography, which is not installed: "
            "pip install 'astraflow-launching[dial_in]'"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0])])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return Certificate(signed.public_bytes(pem), private)


def _name(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
