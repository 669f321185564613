"""The wire format of one changed block: a head of 40 bytes and a payload of byte-aligned streams.

Little-endian, bits of a stream from the lowest of the first byte on. The head is ``checksum`` (u64, xxh3-64
of all that follows it in the frame, seeded with the number of the block), ``code``, ``width``, ``rice``,
``rice_odd``, ``order`` (u8 each, then 3 zero bytes), ``elements``, ``changed``, ``odd``, ``gap_bytes``,
``odd_bytes``, ``magnitude_bytes`` (u32 each), which :class:`Head` explains. A block without a frame did not change.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

from astraflow_core.errors import WireError

STEPS, RAW, DENSE, HUFFMAN = 1, 2, 3, 4
"""Codes: positions and steps, positions and new values, all new values, Huffman codes of gaps and steps."""
WIDTHS = (1, 2, 4)
"""Bytes that an element may have."""
MAX_RICE = 26
HEAD = struct.Struct("<QBBBBBxxxIIIIII")
_CHECKED = HEAD.size - 8


class BadFrame(WireError):
    """The bytes are not a frame of this block; the block has to be fetched whole."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a decoder has to know before it reads the streams.

    ``elements`` of ``width`` bytes are in the block, ``changed`` of them differ, ``odd`` of these by more
    than one step. ``rice`` and ``rice_odd`` are the Rice parameters of the two lists of positions,
    ``order`` the order of the Exp-Golomb code; ``*_bytes`` the lengths of the three unary streams. With code
    :data:`HUFFMAN` ``rice`` and ``rice_odd`` count the lengths in the tables of gaps and of steps,
    ``gap_bytes`` and ``magnitude_bytes`` are the streams of their codes, ``odd_bytes`` that of the raw bits of
    the gaps, and ``odd`` and ``order`` are zero.
    """

    code: int
    width: int
    elements: int
    changed: int
    odd: int = 0
    rice: int = 0
    rice_odd: int = 0
    order: int = 0
    gap_bytes: int = 0
    odd_bytes: int = 0
    magnitude_bytes: int = 0


def seal(head: Head, payload: bytes, block: int) -> bytes:
    """The frame of block number ``block``."""
    packed = HEAD.pack(
        0, head.code, head.width, head.rice, head.rice_odd, head.order, head.elements,
        head.changed, head.odd, head.gap_bytes, head.odd_bytes, head.magnitude_bytes,
    )  # fmt: skip
    body = packed[8:] + payload
    return xxhash.xxh3_64_intdigest(body, seed=block).to_bytes(8, "little") + body


def open_frame(frame: memoryview, block: int, size: int) -> tuple[Head, memoryview]:
    """Head and payload of a frame for block number ``block`` of ``size`` bytes.

    Raises :class:`BadFrame` unless the checksum is right and the head fits the block.
    """
    if len(frame) < HEAD.size:
        raise BadFrame(f"a frame of {len(frame)} bytes has no head")
    checksum, code, width, rice, rice_odd, order, *counts = HEAD.unpack_from(frame)
    if xxhash.xxh3_64_intdigest(frame[8:], seed=block) != checksum:
        raise BadFrame("its checksum is wrong")
    head = Head(code, width, counts[0], counts[1], counts[2], rice, rice_odd, order, *counts[3:])
    if width not in WIDTHS or head.elements * width != size:
        raise BadFrame(f"it is of {head.elements} × {width} bytes, the block has {size}")
    if code not in (STEPS, RAW, DENSE, HUFFMAN) or not head.odd <= head.changed <= head.elements:
        raise BadFrame(f"code {code} with {head.changed} changes, {head.odd} of them odd")
    if (code != HUFFMAN and max(rice, rice_odd) > MAX_RICE) or order > 8 * width:
        raise BadFrame(f"parameters {rice}, {rice_odd}, {order}")
    return head, frame[HEAD.size :]
