"""Runs in the sandboxed process: reads one pickle and writes what it holds as JSON and raw buffers.

Nothing of the caller is imported here, nor numpy or torch: a pickle names the functions that rebuild an array, and each
of those few names stands for a function of this module that keeps the bytes as they are. Every other name is refused.
The result is one line of JSON, then the buffers in base64. Values are tagged lists: ``["v", scalar]``, ``["l", items]``,
``["d", pairs]``, ``["b", buffer]`` and ``["a", dtype, shape, strides, offset, order, buffer]``; strides and offset count
elements.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import sys
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 64
MAX_INTEGER = 1 << 63
MAX_NAME = 200
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""First object of a tensor that was saved in the form that ``pickle`` uses for its storage."""
NUMPY_TYPES = frozenset(("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"))
STORAGES = {
    "BoolStorage": "b1", "ByteStorage": "u1", "CharStorage": "i1", "ShortStorage": "i2", "IntStorage": "i4",
    "LongStorage": "i8", "HalfStorage": "f2", "FloatStorage": "f4", "DoubleStorage": "f8", "BFloat16Storage": "bf16",
}  # fmt: skip
SIZES = {**{name: int(name[1]) for name in NUMPY_TYPES}, "bf16": 2}


class DisallowedValue(Exception):
    """Why the pickle is not accepted."""


class NumpyType:
    """Stands for ``numpy.dtype``."""

    __slots__ = ("name", "order")

    def __init__(self, name: Any, *flags: Any) -> None:
        if name not in NUMPY_TYPES:
            raise DisallowedValue(
                f"an array of dtype {str(name)[:MAX_NAME]!r}; only plain numbers pass"
            )
        self.name, self.order = name, "<"

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("<", "|", "="):
            raise DisallowedValue("an array that is not little-endian")


class Array:
    """Stands for an array or a tensor: its bytes, and where its elements lie in them."""

    __slots__ = ("dtype", "offset", "order", "raw", "shape", "strides")

    def __init__(
        self,
        dtype: str,
        shape: Any,
        raw: Any,
        order: str = "C",
        strides: Any = None,
        offset: int = 0,
    ) -> None:
        self.dtype, self.shape, self.raw = dtype, list(shape), raw
        self.order, self.strides, self.offset = order, strides, offset

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        if type(dtype) is not NumpyType:
            raise DisallowedValue("an array without a plain dtype")
        self.__init__(dtype.name, shape, raw, "F" if fortran else "C")  # type: ignore[misc]


class Storage:
    """Stands for the memory of a tensor."""

    __slots__ = ("count", "dtype", "raw")

    def __init__(self, dtype: str, count: int) -> None:
        self.dtype, self.count, self.raw = dtype, count, b""


def _numpy_reconstruct(*given: Any) -> Array:
    return Array("u1", [0], b"")


def _numpy_frombuffer(buffer: Any, dtype: NumpyType, shape: Any, order: str) -> Array:
    return Array(dtype.name, shape, bytes(buffer), order)


def _numpy_scalar(dtype: NumpyType, raw: bytes) -> Array:
    return Array(dtype.name, [], raw)


def _rebuild_tensor(storage: Any, offset: int, shape: Any, strides: Any, *rest: Any) -> Array:
    if type(storage) is not Storage:
        raise DisallowedValue("a tensor without a plain storage")
    return Array(storage.dtype, shape, storage.raw, "C", list(strides), offset)


def _load_storage(raw: bytes) -> Storage:
    """The storage of a tensor, in the form of ``torch.save`` before there were archives: four pickles, the keys of all
    storages, and for each its number of elements and its bytes."""
    stream = io.BytesIO(raw)
    if Allowed(stream).load() != LEGACY_MAGIC:
        raise DisallowedValue("a tensor whose storage does not have the form that pickle writes")
    Allowed(stream).load()  # the version of the form
    if Allowed(stream).load().get("little_endian") is not True:
        raise DisallowedValue("a tensor that is not little-endian")
    reading = Allowed(stream)
    storage = reading.load()
    keys = Allowed(stream).load()
    if type(storage) is not Storage or list(reading.storages) != keys or len(keys) != 1:
        raise DisallowedValue("a tensor that does not have exactly one storage")
    size = SIZES[storage.dtype]
    if int.from_bytes(stream.read(8), "little") != storage.count:
        raise DisallowedValue("a tensor whose storage has a wrong length")
    storage.raw = stream.read(storage.count * size)
    if len(storage.raw) != storage.count * size or stream.read(1):
        raise DisallowedValue("a tensor whose storage was cut off")
    return storage


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise DisallowedValue(f"bytes in the encoding {encoding[:MAX_NAME]!r}")
    return text.encode("latin1")


def _items(items: Any = ()) -> list[Any]:
    return list(items)


def _pairs(*given: Any) -> dict[Any, Any]:
    return dict(*given)


def _bytes(*given: Any) -> bytes:
    if given and type(given[0]) is int:
        raise DisallowedValue("bytes that are given by their number alone")
    return bytes(*given)


_NUMPY_CORES = ("numpy.core", "numpy._core")
ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): NumpyType,
    **{(f"{core}.multiarray", "_reconstruct"): _numpy_reconstruct for core in _NUMPY_CORES},
    **{(f"{core}.multiarray", "scalar"): _numpy_scalar for core in _NUMPY_CORES},
    **{(f"{core}.numeric", "_frombuffer"): _numpy_frombuffer for core in _NUMPY_CORES},
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch.storage", "_load_from_bytes"): _load_storage,
    ("torch", "Size"): _items,
    ("collections", "OrderedDict"): _pairs,
    ("_codecs", "encode"): _latin1,
    ("builtins", "bytearray"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("builtins", "set"): _items,
    ("builtins", "frozenset"): _items,
}
"""Module and name in a pickle → what stands for it here."""


class Allowed(pickle.Unpickler):
    """Finds the names of :data:`ALLOWED` and the types of storages, and refuses all others."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name."""
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        found = ALLOWED.get((module.replace("__builtin__", "builtins"), name))
        if found is None:
            raise DisallowedValue(
                f"{module}.{name}"[:MAX_NAME] + " is not on the list of allowed names"
            )
        return found

    def persistent_load(self, told: Any) -> Storage:
        """The storage of a tensor: ``("storage", type, key, location, elements, view)``."""
        if type(told) is not tuple or len(told) != 6 or told[0] != "storage" or told[5] is not None:
            raise DisallowedValue("a reference to something outside of the pickle")
        _, dtype, key, _, count, _ = told
        if dtype not in SIZES or type(key) is not str or type(count) is not int or count < 0:
            raise DisallowedValue("a storage of no plain type")
        return self.storages.setdefault(key, Storage(dtype, count))


class _Plain:
    """Turns decoded values into tagged lists. ``most`` values: what is shared counts each time."""

    def __init__(self, most: int) -> None:
        self.most = self.left = most
        self.buffers: list[bytes] = []
        self._known: dict[int, int] = {}

    def value(self, value: Any, depth: int = 0) -> list[Any]:
        kind = type(value)
        self.left -= 1 + (len(value) if kind is str else 0)
        if self.left < 0:
            raise DisallowedValue(f"it expands to more than {self.most} values and characters")
        if depth > MAX_DEPTH:
            raise DisallowedValue(f"it is nested deeper than {MAX_DEPTH}")
        if kind is int and not -MAX_INTEGER <= value < MAX_INTEGER:
            raise DisallowedValue("an integer of more than 64 bits")
        if value is None or kind in (bool, int, float, str):
            return ["v", value]
        if kind in (list, tuple, set, frozenset):
            return ["l", [self.value(item, depth + 1) for item in value]]
        if kind is dict:
            return ["d", [[self.value(part, depth + 1) for part in pair] for pair in value.items()]]
        if kind in (bytes, bytearray):
            return ["b", self.buffer(value)]
        if kind is Array:
            place = [*value.shape, *(value.strides or []), value.offset]
            if any(type(number) is not int for number in place) or value.order not in ("C", "F"):
                raise DisallowedValue("an array with an invalid shape")
            at = self.buffer(value.raw)
            return ["a", value.dtype, value.shape, value.strides, value.offset, value.order, at]
        raise DisallowedValue(f"a value of type {kind.__name__[:MAX_NAME]}")

    def buffer(self, raw: Any) -> int:
        if type(raw) not in (bytes, bytearray):
            raise DisallowedValue("an array without bytes")
        if id(raw) not in self._known:
            self._known[id(raw)] = len(self.buffers)
            self.buffers.append(raw)
        return self._known[id(raw)]


def plain(data: bytes, most: int) -> tuple[list[Any], list[bytes]]:
    """The value of a pickle as tagged lists, and its buffers."""
    stream = io.BytesIO(data)
    value = Allowed(stream).load()
    if stream.read(1):
        raise DisallowedValue("bytes after its end")
    found = _Plain(most)
    return found.value(value), found.buffers


def main() -> None:
    """Answer for the pickle on standard input: its base64."""
    data = base64.b64decode(sys.stdin.buffer.read())
    answer: dict[str, Any]
    try:
        value, buffers = plain(data, 16 * len(data) + 1024)
    except DisallowedValue as error:
        answer, buffers = {"refused": str(error)}, []
    except MemoryError:
        answer, buffers = {"refused": "it needs more memory than a message may"}, []
    except Exception as error:  # noqa: BLE001 - whatever a pickle raises is a reason to refuse it
        said = f"it cannot be decoded: {type(error).__name__}: {error}"
        answer, buffers = {"refused": said[:MAX_NAME]}, []
    else:
        answer = {"value": value, "buffers": [len(buffer) for buffer in buffers]}
    out = sys.stdout
    out.write(json.dumps(answer) + "\n")
    for buffer in buffers:
        out.write(base64.b64encode(buffer).decode("ascii") + "\n")
