"""The layout of a version of the weights: one safetensors file, its header computed before any data.

Format: 8 bytes little-endian header length, JSON header padded with spaces, tensors without gaps
(huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec

from astraflow_core.errors import WireError
from astraflow_core.types import TensorSpec
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_wire.decoding import from_json

MAX_HEADER = 100_000_000
"""Longest header that safetensors itself accepts, in bytes."""


_METADATA = "__metadata__"
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Entry(msgspec.Struct, frozen=True):
    """A tensor in the header; offsets count from the end of the header."""

    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=64)]
    data_offsets: tuple[_Size, _Size]

    def spec(self, name: str, base: int) -> TensorSpec:
        start, end = self.data_offsets
        return TensorSpec(name, self.dtype, self.shape, base + start, base + end)


def lay_out(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]],
) -> tuple[bytes, tuple[TensorSpec, ...]]:
    """Header bytes and specs, in canonical order, for ``(name, dtype, shape)`` given in any order.

    Canonical is widest dtype first, then by name, so that every tensor is aligned and the same tensors
    give the same file. Offsets of the specs count from the start of the file.
    """
    ordered = sorted(tensors, key=lambda tensor: (-_itemsize(tensor[0], tensor[1]), tensor[0]))
    entries: dict[str, Any] = {_METADATA: {"format": "pt"}}
    sizes, end = [], 0
    for name, dtype, shape in ordered:
        if name in entries:
            raise WireError(f"tensor {name!r} appears twice")
        sizes.append(math.prod(shape) * DTYPE_BYTES[dtype])
        start, end = end, end + sizes[-1]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    specs = tuple(
        TensorSpec(
            name, dtype, shape, *(len(header) + offset for offset in entries[name]["data_offsets"])
        )
        for name, dtype, shape in ordered
    )
    return header, specs


def read_specs(file: memoryview) -> tuple[TensorSpec, ...]:
    """Specs of the safetensors file in ``file``, in order of their place in it.

    Raises :class:`WireError` if the header is malformed or the tensors leave gaps or miss the end.
    """
    length = int.from_bytes(file[:8], "little")
    if length > min(MAX_HEADER, len(file) - 8):
        raise WireError(f"safetensors header of {length} bytes in a file of {len(file)}")
    problem = "malformed safetensors header"
    entries = from_json(bytes(file[8 : 8 + length]), dict[str, msgspec.Raw], problem)
    entries.pop(_METADATA, None)
    specs = sorted(
        (
            from_json(entry, _Entry, f"{problem}: tensor {name!r:.200}").spec(name, 8 + length)
            for name, entry in entries.items()
        ),
        key=lambda spec: (spec.start, spec.end),
    )
    position = 8 + length
    for spec in specs:
        expected = position + math.prod(spec.shape) * _itemsize(spec.name, spec.dtype)
        if (spec.start, spec.end) != (position, expected):
            raise WireError(
                f"tensor {spec.name!r} lies at {spec.start}:{spec.end}, expected {position}:{expected}"
            )
        position = spec.end
    if position != len(file):
        raise WireError(f"tensors end at byte {position} of a file of {len(file)}")
    return tuple(specs)


def _itemsize(name: str, dtype: str) -> int:
    try:
        return DTYPE_BYTES[dtype]
    except KeyError as error:
        known = ", ".join(sorted(DTYPE_BYTES))
        raise WireError(f"tensor {name!r} has dtype {dtype!r}; known: {known}") from error


@contextmanager
def mapped(file: Path) -> Iterator[memoryview]:
    """The bytes of a file, read-only, within the ``with`` block."""
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as whole,
        memoryview(whole) as view,
    ):
        yield view


def specs_of(file: Path) -> tuple[TensorSpec, ...]:
    """:func:`read_specs` of a file."""
    with mapped(file) as view:
        return read_specs(view)
