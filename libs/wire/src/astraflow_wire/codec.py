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
    """A received message; :class:`astraflow_core.errors.WireError` says what was expected and which field is wrong."""
    return from_msgpack(body, expected, f"expected a msgpack {expected.__name__}")
