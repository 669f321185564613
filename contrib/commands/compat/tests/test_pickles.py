"""Pickles from untrusted services: plain values, arrays and tensors are decoded, everything else is refused by its
name, and other requests are not affected."""

from __future__ import annotations

import asyncio
import base64
import collections
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow_contrib_compat.pickles.decoder import PickleDecoder, PickleRefused
from astraflow_contrib_compat.pickles.encoder import encode_pickle

Decode = Callable[[bytes], Any]


@pytest.fixture(scope="module")
def decode() -> Iterator[Decode]:
    decoder = PickleDecoder(1 << 20, memory_mb=256)
    with asyncio.Runner() as runner:
        yield lambda data: runner.run(decoder.decode(data))
    decoder.close()


PLAIN = {
    "none": None, "bools": [True, False], "numbers": [0, -5, (1 << 63) - 1, 0.5, float("inf")],
    "text": "é \N{SNAKE}\ud800", "bytes": b"\x00\xff", "nested": [{"a": [[]]}, {}], 7: "seven",
}  # fmt: skip


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_plain_values_pass(decode: Decode, protocol: int) -> None:
    assert decode(pickle.dumps(PLAIN, protocol)) == PLAIN


def test_values_of_the_reference_pass(decode: Decode) -> None:
    """Tuples and sets become lists, an ordered dict a dict; cloudpickle writes plain values as pickle does."""
    given_ = collections.OrderedDict(a=(1, 2), b={3}, c=bytearray(b"x"), d=np.float32(0.5))
    found = decode(cloudpickle.dumps(given_))
    assert found == {"a": [1, 2], "b": [3], "c": b"x", "d": 0.5}


ARRAYS = [
    np.arange(6, dtype=np.int32).reshape(1, 6), np.array([[True, False]]), np.ones((2, 0), np.float32),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(12).reshape(3, 4)[:, 1], np.float16([1, 2]),
]  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 5])
def test_arrays_pass(decode: Decode, protocol: int) -> None:
    for expected, found in zip(ARRAYS, decode(pickle.dumps(ARRAYS, protocol)), strict=True):
        assert found.dtype == expected.dtype and np.array_equal(found, expected)


TENSORS = (Path(__file__).parent / "tensors.pickle.txt").read_text()
"""What PyTorch 2.13 makes of the tensors of ``test_torch_itself``."""


def check_tensors(found: dict[str, Any]) -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(found["table"], table) and found["table"].dtype == np.float32
    assert np.array_equal(found["column"], table[:, 1])
    assert found["ids"].dtype == np.int64 and found["ids"].tolist() == [[1, 2]]
    assert found["half"].tolist() == [1.5, -2.0] and found["mask"].tolist() == [True, False]


def test_tensors_pass_without_torch(decode: Decode) -> None:
    check_tensors(decode(base64.b64decode(TENSORS)))


class Calls:
    """Calls a function if it is unpickled by plain pickle."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def nested(depth: int) -> bytes:
    return b"\x80\x03" + b"]" * depth + b"a" * (depth - 1) + b"."


def laughs() -> bytes:
    """Ten references to ten references to … one string: 10^12 of them in some hundred bytes."""
    body = b"\x80\x03X\x03\x00\x00\x00lolq\x00"
    for level in range(12):
        body += b"]q" + bytes([level + 1]) + b"(" + (b"h" + bytes([level])) * 10 + b"e"
    return body + b"."


def itself() -> bytes:
    loop: list[Any] = []
    loop.append(loop)
    return pickle.dumps(loop)


def shape_without_bytes() -> bytes:
    data = pickle.dumps(np.zeros((1, 3), np.int32), 2)
    assert data.count(b"K\x01K\x03\x86") == 1
    return data.replace(b"K\x01K\x03\x86", b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86")


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a command": (lambda: pickle.dumps(Calls(os.system, "touch went-off")), "posix.system"),
    "eval": (lambda: pickle.dumps(Calls(eval, "1")), "builtins.eval"),
    "getattr": (lambda: pickle.dumps(Calls(getattr, "x", "upper")), "builtins.getattr"),
    "an import": (lambda: pickle.dumps(Calls(__import__, "os")), "builtins.__import__"),
    "a class of its module": (lambda: pickle.dumps(Path("/etc/passwd")), "pathlib.PosixPath"),
    "a function by value": (lambda: cloudpickle.dumps(lambda: 1), "cloudpickle.cloudpickle"),
    "a dotted name": (lambda: b"\x80\x04\x8c\x08builtins\x8c\x0elist.__class__\x93.", "list.__class__"),
    "a name of ours": (
        lambda: b"castraflow_contrib_compat.pickles.guest\nplain\n.", "astraflow_contrib_compat.pickles.guest.plain"
    ),
    "numpy.load": (lambda: b"cnumpy\nload\n(S'/etc/passwd'\ntR.", "numpy.load"),
    "a class itself": (lambda: b"cnumpy\nndarray\n.", "a value of type type"),
    "a state for a function": (lambda: b"c_codecs\nencode\n}X\x01\x00\x00\x00ai\x00b.", "cannot be decoded"),
    "a reference outwards": (lambda: b"\x80\x03X\x01\x00\x00\x00aQ.", "outside"),
    "an extension": (lambda: b"\x80\x02\x82\x01.", "cannot be decoded"),
    "deep nesting": (lambda: nested(100_000), "nested deeper"),
    "itself": (itself, "nested deeper"),
    "a billion laughs": (laughs, "expands to more"),
    "bytes that are not there": (lambda: b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.", "memory"),
    "a memo far away": (lambda: b"\x80\x03Nr\xfe\xff\xff\xff.", "memory"),
    "bytes by their number": (lambda: pickle.dumps(Calls(bytes, 1 << 33)), "by their number"),
    "a long number": (lambda: pickle.dumps(1 << 4000), "64 bits"),
    "an array of objects": (lambda: pickle.dumps(np.array([object()], object)), "dtype 'O8'"),
    "big-endian numbers": (lambda: pickle.dumps(np.arange(3, dtype=">i4")), "little-endian"),
    "a shape without bytes": (shape_without_bytes, "bytes together"),
    "an array three times": (lambda: pickle.dumps([np.zeros(1 << 16)] * 3), "bytes together"),
    "cut off": (lambda: pickle.dumps(PLAIN)[:-9], "cannot be decoded"),
    "two at once": (lambda: pickle.dumps(1) * 2, "after its end"),
    "nothing": (lambda: b"", "cannot be decoded"),
    "too many bytes": (lambda: pickle.dumps(bytes(2 << 20)), "the limit is"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_refused_by_name(decode: Decode, name: str) -> None:
    make, reason = HOSTILE[name]
    with pytest.raises(PickleRefused, match="was refused") as refused:
        decode(make())
    assert reason in str(refused.value) and len(str(refused.value)) < 400
    assert decode(pickle.dumps({"after": [1]})) == {"after": [1]}
    assert not Path("went-off").exists()


@pytest.mark.slow
def test_one_that_takes_too_long_is_stopped() -> None:
    """Integers of one hash make a dict of them quadratic."""
    keys = (number * ((1 << 61) - 1) for number in range(1, 30_000))
    data = b"\x80\x03}(" + b"".join(pickle.dumps(key, 3)[2:-1] + b"N" for key in keys) + b"u."
    decoder = PickleDecoder(1 << 20, cpu_s=1)
    try:
        with pytest.raises(PickleRefused, match="processor time"):
            asyncio.run(decoder.decode(data))
    finally:
        decoder.close()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
)  # fmt: skip


@settings(max_examples=30)
@given(VALUES)
def test_what_we_write_is_what_python_reads(value: Any) -> None:
    found = pickle.loads(encode_pickle(value))
    assert found == value and repr(found) == repr(value)


def test_only_plain_values_are_written() -> None:
    assert pickle.loads(encode_pickle((1, True))) == [1, True]
    for value in (object(), {1, 2}, 1 << 63, [len]):
        with pytest.raises(ValueError, match="cannot be sent"):
            encode_pickle(value)


@pytest.mark.backend
def test_torch_itself(decode: Decode) -> None:
    import torch

    table = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    tensors = {
        "table": table, "column": table[:, 1], "ids": torch.tensor([[1, 2]]),
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "mask": torch.tensor([True, False]),
    }  # fmt: skip
    for protocol in (2, 4):
        check_tensors(decode(pickle.dumps(tensors, protocol)))
    with pytest.raises(PickleRefused, match=r"torch\._utils\._rebuild_parameter"):
        decode(pickle.dumps(torch.nn.Parameter(table)))
