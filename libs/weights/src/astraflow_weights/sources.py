"""What a manifest says of a version of which several publishers serve a part each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import msgspec

from astraflow_core.errors import WireError
from astraflow_core.types import Manifest, Source
from astraflow_wire.decoding import from_msgpack

MAX_SOURCES = 4096
"""Sources of one version: a receiver has a client of each."""


class _Sourced(msgspec.Struct, frozen=True):
    sources: tuple[Source, ...] = ()


def encode(manifest: Manifest, sources: Sequence[Source]) -> bytes:
    """The manifest in msgpack, with who serves what."""
    said = {field.name: getattr(manifest, field.name) for field in fields(manifest)}
    return msgspec.msgpack.encode({**said, "sources": list(sources)})


def decode(body: bytes, manifest: Manifest) -> tuple[Source, ...]:
    """The sources that the encoded ``manifest`` names; none if its publisher has everything. Raises
    :class:`WireError` if it makes no sense."""
    sources = from_msgpack(body, _Sourced, "malformed sources in its manifest").sources
    if len(sources) > MAX_SOURCES:
        raise WireError(
            f"its manifest names {len(sources)} sources, at most {MAX_SOURCES} are asked"
        )
    runs = sorted((first, last, source.url) for source in sources for first, last in source.runs)
    taken = 0
    for first, last, url in runs:
        if not 0 <= first < last <= len(manifest.blocks):
            raise WireError(
                f"its manifest says that {url} serves blocks {first} to {last - 1} of "
                f"{len(manifest.blocks)}"
            )
        if first < taken:
            raise WireError(
                f"its manifest says that {url} serves blocks {first} to {last - 1}, and names block {first} twice"
            )
        taken = last
    return sources
