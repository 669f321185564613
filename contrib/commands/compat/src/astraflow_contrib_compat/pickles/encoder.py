"""Writes pickles, of plain values alone: what the other side decodes runs nothing."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

_HEAD, _END = b"\x80\x03", b"."
_MARK = b"("


def encode_pickle(value: Any, tensors: bool = False) -> bytes:
    """``value`` as a pickle of protocol 3: None, bool, int of 64 bits, float, str, bytes, arrays of numbers, and lists, tuples
    (as lists) and dicts of these. With ``tensors``, arrays become tensors of PyTorch where the pickle is read. ValueError for
    anything else."""
    out = bytearray(_HEAD)
    _write(value, out, tensors)
    return bytes(out + _END)


def _write(value: Any, out: bytearray, tensors: bool) -> None:
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
                _write(item, out, tensors)
            out += b"e"
        case dict():
            out += b"}" + _MARK
            for key, item in value.items():
                _write(key, out, tensors)
                _write(item, out, tensors)
            out += b"u"
        case np.ndarray() if value.dtype.kind in "biuf":
            _write_array(value, out, tensors)
        case _:
            raise ValueError(
                f"{type(value).__name__} {str(value)[:80]!r} cannot be sent in the public protocol: only plain values are"
            )


def _write_array(value: npt.NDArray[Any], out: bytearray, tensors: bool) -> None:
    """As NumPy writes its arrays: an empty one that is given its state."""
    given = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(value.shape)
    if tensors:
        out += b"ctorch\nfrom_numpy\n"
    out += b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    out += _MARK + b"K\x01" + _MARK
    shape: tuple[int, ...] = given.shape
    for size in shape:
        _write(size, out, tensors)
    out += b"tcnumpy\ndtype\n"
    _write(given.dtype.kind + str(given.dtype.itemsize), out, tensors)
    out += b"\x89\x88\x87R" + _MARK + b"K\x03"
    _write("<" if given.dtype.itemsize > 1 else "|", out, tensors)
    out += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    _write(given.tobytes(), out, tensors)
    out += b"tb"
    if tensors:
        out += b"\x85R"
