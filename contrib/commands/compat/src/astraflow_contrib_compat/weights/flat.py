"""A version as the flat buffer of the public protocol: tensors back to back, as they lie in a safetensors file."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow_core.types import WeightSource

WORD = 2
DELTA_HEAD = struct.Struct("<QHHi")
WIDE_INDICES = 1
"""Flag of a delta whose indices have 64 bits."""
_PIECE_WORDS = 1 << 22
TORCH = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
    "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip


@dataclass(frozen=True)
class FlatWeights:
    """``tensors`` (name, shape, type) in the order of their bytes, which are ``length`` bytes of the file of ``source``
    from ``start`` on."""

    source: WeightSource
    start: int
    length: int
    tensors: tuple[tuple[str, tuple[int, ...], str], ...]

    @classmethod
    def of(cls, source: WeightSource) -> FlatWeights:
        """The layout of a fetched version, whose transport has verified it."""
        with Path(source.path).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        tensors = tuple(
            (name, tuple(entry["shape"]), TORCH[entry["dtype"]]) for name, entry in entries
        )
        length = Path(source.path).stat().st_size - 8 - size
        return cls(source, 8 + size, length, tensors)

    def words(self) -> npt.NDArray[np.uint16]:
        """The buffer as words of two bytes, mapped from the file."""
        count = self.length // WORD
        return np.memmap(self.source.path, "<u2", "r", offset=self.start, shape=(count,))


def delta_body(old: FlatWeights, new: FlatWeights) -> bytes | None:
    """The words of ``new`` that differ from those of ``old``: a header (number of words ``Q``, bytes of a word ``H``, flags
    ``H``, 0 ``i``), their indices in ascending order, and their new values. ``None`` if there is no such delta: another
    layout, an odd length, or more than half of the buffer."""
    if old.tensors != new.tensors or old.length != new.length or new.length % WORD:
        return None
    before, after = old.words(), new.words()
    wide = len(after) > 1 << 32
    size_of_one = (8 if wide else 4) + WORD
    most = (new.length // 2) // size_of_one
    found: list[npt.NDArray[np.int64]] = []
    count = 0
    for start in range(0, len(after), _PIECE_WORDS):
        piece = slice(start, start + _PIECE_WORDS)
        changed = np.flatnonzero(before[piece] != after[piece]) + start
        count += len(changed)
        if count > most:
            return None
        found.append(changed)
    indices = np.concatenate(found) if found else np.empty(0, np.int64)
    head = DELTA_HEAD.pack(count, WORD, WIDE_INDICES if wide else 0, 0)
    return head + indices.astype("<u8" if wide else "<u4").tobytes() + after[indices].tobytes()
