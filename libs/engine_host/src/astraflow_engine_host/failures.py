"""Exceptions in words for people: type, message and the line of the user's code that raised."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from astraflow_engine_host.protocol import Failure

_OURS = tuple(
    f"{Path(spec.origin).parent}{os.sep}"
    for name in ("core", "engine_host", "runtime", "serving", "weights", "wire")
    if (spec := find_spec(f"astraflow_{name}")) is not None and spec.origin is not None
)
_KEYS_SHOWN = 20
_STANDARD = sysconfig.get_path("stdlib")
_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


class StackFrame(NamedTuple):
    """The position of a call in the code."""

    file: str
    line: int | None
    function: str


def where(error: BaseException) -> str:
    """``file:line`` of the frame that :func:`place_of` chooses; empty if it was never raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return place_of([StackFrame(f.filename, f.lineno, f.name) for f in frames]).partition(" in ")[0]


def place_of(frames: Sequence[StackFrame]) -> str:
    """``file:line in function`` of the innermost of ``frames``, which come last, that is the user's code; of an installed
    package if there is none of his own, and of the last one if there is neither. Empty if there are none."""
    if not frames:
        return ""
    outside = [f for f in frames if not is_ours(f.file) and not f.file.startswith("<frozen")]
    third_party = [f for f in outside if f.file.startswith(_INSTALLED)]
    own = [f for f in outside if f not in third_party and not f.file.startswith(_STANDARD)]
    frame = (own or third_party or outside or frames)[-1]
    return f"{frame.file}:{frame.line} in {frame.function}"


def is_ours(file: str) -> bool:
    """Whether a source file is one of the core, its libraries or the runtime."""
    return file.startswith(_OURS)


def describe(error: BaseException, data: Mapping[str, Any] | None = None) -> str:
    """``Type: message (file:line)`` in one line; after a ``KeyError`` the keys of ``data``, those of a prompt, if it is one
    of these that was missing."""
    text = " ".join(str(error).split())
    head = f"{type(error).__name__}: {text}" if text else type(error).__name__
    place = where(error)
    told = f"{head} ({place})" if place else head
    if data is None or type(error) is not KeyError or error.args[:1] == () or error.args[0] in data:
        return told
    keys = [repr(key) for key in data]
    return f"{told}; the prompt's data has {', '.join(keys[:_KEYS_SHOWN]) or 'no keys'}{', …' * (len(keys) > _KEYS_SHOWN)}"


def as_failure(error: BaseException) -> Failure:
    """An exception as it travels between processes."""
    return Failure(type(error).__name__, str(error), where(error))
