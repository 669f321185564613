"""Names of the objects below a publisher's folder, and the signature of a manifest."""

from __future__ import annotations

import hashlib
import hmac

from astraflow_core.errors import WireError
from astraflow_core.types import Manifest

READERS = "readers"
LEASE_S = 60.0
"""How long a version stays for a reader whose lease no longer changes, by the publisher's clock."""
_MAGIC = b"AFM1"
_SIGNATURE = 32


def tag_of(token: str) -> str:
    """Distinguishes runs of one name without revealing the token."""
    return hashlib.blake2b(token.encode(), digest_size=6, person=b"astraflow-tag").hexdigest()


def manifest_name(version: int) -> str:
    """The manifest; its presence makes the version one."""
    return f"v{version}/manifest"


def part_name(version: int, part: int) -> str:
    """An object that holds consecutive blocks."""
    return f"v{version}/data-{part:05d}"


def blocks_per_part(manifest: Manifest, part_mb: int) -> int:
    """Blocks of each part but the last."""
    return max((part_mb << 20) // manifest.block_size, 1)


def sign(body: bytes, token: str, part_mb: int) -> bytes:
    """The manifest object: magic, size of the parts, signature by the run's token, manifest."""
    signed = part_mb.to_bytes(4, "little") + body
    return _MAGIC + _signature(signed, token) + signed


def verify(data: bytes, token: str) -> tuple[bytes, int]:
    """Manifest and size of the parts in MiB; raises :class:`WireError` without a right signature."""
    start = len(_MAGIC) + _SIGNATURE
    signature, signed = data[len(_MAGIC) : start], data[start:]
    if not (
        data.startswith(_MAGIC)
        and len(signed) > 4
        and hmac.compare_digest(signature, _signature(signed, token))
    ):
        raise WireError("its manifest was changed, or signed with the token of another run")
    return signed[4:], int.from_bytes(signed[:4], "little")


def _signature(signed: bytes, token: str) -> bytes:
    key = hashlib.sha256(token.encode()).digest()
    return hashlib.blake2b(
        signed, key=key, digest_size=_SIGNATURE, person=b"astraflow-disk"
    ).digest()
