"""Writes pickles, of plain values alone: what the other side decodes runs nothing."""

from __future__ import annotations

import struct
from typing import Any

_HEAD, _END = b"\x80\x03", b"."
_MARK = b"("


def encode_pickle(value: Any) -> bytes:
    """``value`` as a pickle of protocol 3: None, bool, int of 64 bits, float, str, bytes, and lists, tuples (as lists)
    and dicts of these. ValueError for anything else."""
    out = bytearray(_HEAD)
    _write(value, out)
    return bytes(out + _END)


def _write(value: Any, out: bytearray) -> None:
    match value:
        case None:
            out += b"N"
        case True | False:
            out += b"\x88" if value else b"\x89"
        case int() if -(1 << 63) <= value < 1 << 63:
            out += b"\x8a\x08" + struct.pack("<q", value)
        case float():
            out += b"G" + struct.pack(">d", value)
        case str():
            text = value.encode("utf-8", "surrogatepass")
            out += b"X" + struct.pack("<I", len(text)) + text
        case bytes():
            out += b"B" + struct.pack("<I", len(value)) + value
        case list() | tuple():
            out += b"]" + _MARK
            for item in value:
                _write(item, out)
            out += b"e"
        case dict():
            out += b"}" + _MARK
            for key, item in value.items():
                _write(key, out)
                _write(item, out)
            out += b"u"
        case _:
            raise ValueError(
                f"{type(value).__name__} {str(value)[:80]!r} cannot be sent in the public protocol: only plain values are"
            )
