"""Checks a manifest against the announcement that named its version."""

from __future__ import annotations

import xxhash

from astraflow_core.errors import WireError
from astraflow_core.types import Announcement, Manifest
from astraflow_wire.decoding import from_msgpack

MAX_MANIFEST = 64 << 20
"""Longest manifest that is read, in bytes."""
MAX_BLOCK = 64 << 20


def decode_manifest(body: bytes | memoryview, wanted: Announcement) -> Manifest:
    """The manifest in ``body`` (msgpack), if it is that of the announced version.

    The announcement's digest covers the block digests, so all that they verify is the version. Raises
    :class:`WireError` with what differs; a manifest that arrives damaged may be intact at the next attempt.
    """
    if len(body) > MAX_MANIFEST:
        raise WireError(f"its manifest has more than {MAX_MANIFEST} bytes")
    manifest = from_msgpack(body, Manifest, "malformed manifest")
    digest = xxhash.xxh3_128_hexdigest(b"".join(manifest.blocks))
    if (manifest.digest, digest) != (wanted.digest, wanted.digest):
        raise WireError(f"its manifest has digest {digest}; expected {wanted.digest} as announced")
    if (manifest.policy, manifest.version) != (wanted.policy, wanted.version):
        raise WireError(f"its manifest is of policy {manifest.policy!r} version {manifest.version}")
    fits = 0 < manifest.block_size <= MAX_BLOCK and manifest.size > 0
    blocks = -(-manifest.size // manifest.block_size) if fits else 0
    if manifest.size != wanted.size or blocks != len(manifest.blocks):
        raise WireError(
            f"its manifest has {len(manifest.blocks)} blocks of {manifest.block_size} bytes for "
            f"{manifest.size} bytes; expected {wanted.size} as announced"
        )
    return manifest
