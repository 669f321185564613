"""Damaged messages for decoders: each must be refused with the one decode error, or be read, in bounded memory.

The damage is the same at every run. :func:`damaged` makes it, :func:`assert_refused_or_read` judges a decoder.
"""

from __future__ import annotations

import json
import random
import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from astraflow_core.errors import WireError

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**64 - 1, -(2**63), 0.5, float("nan"), float("inf"),
    -float("inf"), 1e308, "", "x", "é\u200b\0", "../..", "a" * 300, b"", b"\xff" * 5, [], [[]], {}, {"a": 1},
    {1: 2}, [1, 2], [0] * 70, msgspec.msgpack.Ext(5, b"x"), "http://[x", "http://host:99999999",
)  # fmt: skip
"""Values that some field of a message will not expect."""
DEEP = {"msgpack": b"\x91" * 100_000, "json": b"[" * 100_000, "bytes": b"\xff" * 100_000}
_FIRST_BYTES = (0xC0, 0xC1, 0xC6, 0xD9, 0xDB, 0xDD, 0xDF, 0xFF, 0x80, 0x90, 0x00, 0x7F)
"""Of msgpack: nil, what is never used, long bytes, texts, lists and maps, and small values."""
MOST_BYTES = 8 << 20
"""What decoding a message of a few kilobytes may take at once."""
Format = Literal["msgpack", "json", "bytes"]


def damaged(
    sound: Sequence[bytes], format: Format = "msgpack", *, count: int = 1000, seed: int = 0
) -> Iterator[bytes]:
    """``count`` damaged forms of ``sound`` messages: bits turned, bytes put in, left out and cut off, and, unless they
    are mere ``"bytes"``, one or two values of the message replaced by :data:`ODD` ones."""
    chance = random.Random(seed)
    trees = [] if format == "bytes" else [_read(message, format) for message in sound]
    yield b""
    yield DEEP[format]
    for _ in range(count):
        if trees and chance.random() < 0.6:
            tree = chance.choice(trees)
            for _ in range(chance.randint(1, 2)):
                place = chance.choice(list(_paths(tree)))
                tree = _replaced(tree, place, chance.choice(ODD))
            yield _written(tree, format)
        else:
            yield _mutated(chance.choice(sound), chance)


def assert_refused_or_read(
    decode: Callable[[bytes], object],
    messages: Iterator[bytes] | Sequence[bytes],
    error: type[Exception] = WireError,
) -> None:
    """Fail if ``decode`` raises anything but ``error`` for one of ``messages``, takes more than :data:`MOST_BYTES`
    for it, or refuses none."""
    refused = 0
    tracemalloc.start()
    try:
        for message in messages:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                decode(message)
            except error:
                refused += 1
            except Exception as escaped:
                place = traceback.extract_tb(escaped.__traceback__)[-1]
                raise AssertionError(
                    f"{type(escaped).__name__} ({escaped}) at {place.filename}:{place.lineno} instead of "
                    f"{error.__name__} for {message[:200]!r}"
                ) from escaped
            took = tracemalloc.get_traced_memory()[1] - before
            assert took <= MOST_BYTES, f"{took} bytes for {message[:200]!r}"
    finally:
        tracemalloc.stop()
    assert refused, "no damage was noticed"


def _read(message: bytes, format: Format) -> Any:
    return json.loads(message) if format == "json" else msgspec.msgpack.decode(message)


def _written(tree: Any, format: Format) -> bytes:
    if format == "msgpack":
        return msgspec.msgpack.encode(tree)
    return json.dumps(tree, default=str, skipkeys=True).encode()


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    keys: Sequence[Any] = ()
    if isinstance(tree, dict):
        keys = list(tree)
    elif isinstance(tree, list):
        keys = range(min(len(tree), 8))
    for key in keys:
        yield from _paths(tree[key], (*path, key))


def _replaced(tree: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = _replaced(copy[path[0]], path[1:], new)
    return copy


def _mutated(message: bytes, chance: random.Random) -> bytes:
    data = bytearray(message)
    for _ in range(chance.randint(1, 4)):
        at, kind = chance.randrange(len(data) + 1), chance.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = chance.choice(_FIRST_BYTES)
        elif kind == 2:
            data[at:at] = chance.randbytes(chance.randint(1, 9))
        elif kind == 3:
            del data[at : at + chance.randint(1, 9)]
        elif kind == 4:
            del data[at:]
        else:
            data[at:at] = bytes([chance.choice((0x91, 0x81, 0x5B))]) * chance.choice((1, 3000))
    return bytes(data)
