"""Decodes untrusted bytes; every problem raises one kind of error. The decoded type declares type
and bounds of every field, so that the result needs no further checks.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from astraflow_core.errors import WireError

T = TypeVar("T")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what was expected: RecursionError if they are nested too deep."""


def from_msgpack(body: bytes | memoryview, expected: type[T], problem: str) -> T:
    """The object in ``body``. :class:`WireError` begins with ``problem`` and says which field is wrong."""
    try:
        return msgspec.msgpack.decode(body, type=expected)
    except UNDECODABLE as error:
        raise WireError(f"{problem}: {error}") from error


def from_json(body: bytes | memoryview | str, expected: type[T], problem: str) -> T:
    """The same of JSON."""
    try:
        return msgspec.json.decode(body, type=expected)
    except UNDECODABLE as error:
        raise WireError(f"{problem}: {error}") from error
