"""Certificates for tests of ``[tls]``, made where they are needed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from astraflow_launching.certificates import Certificate, issued, new_authority
from astraflow_wire.http.tls import RunTls

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def write_tls(
    folder: Path,
    *,
    hosts: tuple[str, ...] = LOOPBACK,
    days: float = 1.0,
    client_certificates: bool = False,
    signer: Certificate | None = None,
) -> RunTls:
    """An authority, and a certificate of ``hosts`` that it, or ``signer`` in its place, has signed. The certificate is valid for
    ``days`` from now, which may be negative."""
    authority = new_authority("authority of a test", timedelta(days=1))
    own = issued(signer or authority, hosts, timedelta(days=days))
    files = (folder / "authority.pem", folder / "own.pem", folder / "own.key")
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in zip(files, (authority.public, own.public, own.key), strict=True):
        file.write_bytes(content)
    files[2].chmod(0o600)
    return RunTls(*files, client_certificates=client_certificates)
