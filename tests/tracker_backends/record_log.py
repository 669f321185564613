"""Files of records that W&B and SwanLab write: LevelDB's log format, after a header of 7 bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

BLOCK, HEAD = 32768, 7


def contents(log: bytes) -> Iterator[bytes]:
    """The records of a file."""
    place, parts = HEAD, b""
    while place + HEAD <= len(log):
        left = BLOCK - place % BLOCK
        if left < HEAD:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", log, place + 4)
        parts += log[place + HEAD : place + HEAD + size]
        place += HEAD + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
