"""Certificates for TLS between processes that know each other: self-signed, or signed by their own authority."""

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

_LIST = b"-----BEGIN X509 CRL-----"
"""Where a list of revoked certificates begins, in PEM."""
_SLACK = datetime.timedelta(days=1)
"""A certificate is valid from this long ago: clocks differ."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, both in PEM."""

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
    return _made(hosts[0], hosts, valid, None, authority=True)


def new_authority(name: str, valid: datetime.timedelta) -> Certificate:
    """A certificate that signs others, and cannot be used by a server. Raises as :func:`self_signed` does."""
    return _made(name, (), valid, None, authority=True)


def issued(
    authority: Certificate, hosts: tuple[str, ...], valid: datetime.timedelta
) -> Certificate:
    """A certificate of ``hosts`` that ``authority`` has signed, for servers and clients. Raises as :func:`self_signed` does."""
    return _made(hosts[0], hosts, valid, authority, authority=False)


def with_revocations(authority: Certificate, *revoked: bytes) -> bytes:
    """The certificate of an authority, in PEM, with the list of those that it has revoked: the previous ones, and ``revoked``,
    certificates in PEM. Services that trust this file refuse them. Raises as :func:`self_signed` does."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
    except ImportError as error:
        raise _missing() from error

    own = x509.load_pem_x509_certificate(authority.public)
    numbers = {x509.load_pem_x509_certificate(each).serial_number for each in revoked}
    if _LIST in authority.public:
        numbers |= {each.serial_number for each in x509.load_pem_x509_crl(authority.public)}
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(own.subject)
        .last_update(own.not_valid_before_utc)
        .next_update(own.not_valid_after_utc)
    )
    for number in sorted(numbers):
        entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
        builder = builder.add_revoked_certificate(entry.build())
    key = serialization.load_pem_private_key(authority.key, None)
    signed = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
    pem = serialization.Encoding.PEM
    return own.public_bytes(pem) + signed.public_bytes(pem)


def _made(
    subject: str,
    hosts: tuple[str, ...],
    valid: datetime.timedelta,
    signer: Certificate | None,
    *,
    authority: bool,
) -> Certificate:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise _missing() from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject[:64])])
    signing, public = key, key.public_key()
    signed_by = public
    if signer is not None:
        issuer = x509.load_pem_x509_certificate(signer.public).subject
        loaded = serialization.load_pem_private_key(signer.key, None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey), "made here"
        signing, signed_by = loaded, loaded.public_key()
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder(issuer, name, public, x509.random_serial_number())
        .not_valid_before(min(now, now + valid) - _SLACK)
        .not_valid_after(now + valid)
        .add_extension(
            x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True
        )
        .add_extension(x509.KeyUsage(True, *(False,) * 4, authority, authority, False, False), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signed_by), critical=False
        )
    )
    if hosts:
        names = x509.SubjectAlternativeName([_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    signed = builder.sign(signing, hashes.SHA256())
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return Certificate(signed.public_bytes(pem), private)


def _missing() -> PreflightError:
    return PreflightError(
        "a certificate for TLS is made with the package cryptography, which is not installed: "
        "pip install 'astraflow-launching[dial_in]'"
    )


def _name(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
