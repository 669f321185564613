"""Exceptions in words for people: type, message and the line of the user's code that raised."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from astraflow_core.raas.host_protocol import Failure

_CORE = str(Path(__file__).resolve().parent.parent)
_STANDARD = sysconfig.get_path("stdlib")
_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def where(error: BaseException) -> str:
    """``file:line`` of the innermost frame of the user's code; of an installed package if there is none
    of his own, and of whatever raised if there is neither."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    outside = [f for f in frames if not f.filename.startswith((_CORE, "<frozen"))]
    third_party = [f for f in outside if f.filename.startswith(_INSTALLED)]
    own = [f for f in outside if f not in third_party and not f.filename.startswith(_STANDARD)]
    frame = (own or third_party or outside or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


def describe(error: BaseException) -> str:
    """``Type: message (file:line)`` in one line."""
    text = " ".join(str(error).split())
    head = f"{type(error).__name__}: {text}" if text else type(error).__name__
    place = where(error)
    return f"{head} ({place})" if place else head


def as_failure(error: BaseException) -> Failure:
    """An exception as it travels between processes."""
    return Failure(type(error).__name__, str(error), where(error))
