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
from typing import Any

from astraflow_core.errors import WireError
from astraflow_core.types import TensorSpec
from astraflow_core.types.weights import DTYPE_BYTES

MAX_HEADER = 100_000_000
"""Longest header that safetensors itself accepts, in bytes."""


def lay_out(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]],
) -> tuple[bytes, tuple[TensorSpec, ...]]:
    """Header bytes and specs, in canonical order, for ``(name, dtype, shape)`` given in any order.

    Canonical is widest dtype first, then by name, so that every tensor is aligned and the same tensors
    give the same file. Offsets of the specs count from the start of the file.
    """
    ordered = sorted(tensors, key=lambda tensor: (-_itemsize(tensor[0], tensor[1]), tensor[0]))
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
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
    try:
        entries = json.loads(bytes(file[8 : 8 + length]))
        entries.pop("__metadata__", None)
        specs = sorted(
            (
                TensorSpec(
                    name,
                    entry["dtype"],
                    tuple(entry["shape"]),
                    *(8 + length + offset for offset in entry["data_offsets"]),
                )
                for name, entry in entries.items()
            ),
            key=lambda spec: (spec.start, spec.end),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WireError(f"malformed safetensors header: {error!r}") from error
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
    """The bytes of a file, read-only, as long as the block lasts."""
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
