"""Encodes and decodes messages."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from astraflow_wire.decoding import from_msgpack

T = TypeVar("T")


def encode(message: msgspec.Struct) -> bytes:
    """A message as msgpack."""
    return msgspec.msgpack.encode(message)


def decode(body: bytes, expected: type[T]) -> T:
    """A received message; raises :class:`astraflow_core.errors.WireError` with the field that is wrong and what was expected."""
    return from_msgpack(body, expected, f"expected a msgpack {expected.__name__}")
