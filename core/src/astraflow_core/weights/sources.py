"""What a manifest says of a version of which several publishers serve a part each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import msgspec

from astraflow_core.types import Manifest, Source
from astraflow_core.weights.failures import PublisherFailed


class _Sourced(msgspec.Struct, frozen=True):
    sources: tuple[Source, ...] = ()


def encode(manifest: Manifest, sources: Sequence[Source]) -> bytes:
    """The manifest in msgpack, with who serves what."""
    said = {field.name: getattr(manifest, field.name) for field in fields(manifest)}
    return msgspec.msgpack.encode({**said, "sources": list(sources)})


def decode(body: bytes, manifest: Manifest) -> tuple[Source, ...]:
    """The sources that the encoded ``manifest`` names; none if its publisher has everything. Raises
    :class:`PublisherFailed` if it makes no sense."""
    try:
        sources = msgspec.msgpack.decode(body, type=_Sourced).sources
    except (msgspec.DecodeError, RecursionError) as error:
        raise PublisherFailed(f"malformed sources in its manifest: {error}") from error
    for source in sources:
        for first, last in source.runs:
            if not 0 <= first < last <= len(manifest.blocks):
                raise PublisherFailed(
                    f"its manifest says that {source.url} serves blocks {first} to {last - 1} of "
                    f"{len(manifest.blocks)}"
                )
    return sources
