"""Observations in text: a rule for each kind of value, and what has no text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

MAX_NUMBERS = 256
"""Maximum size of an array that is shown as numbers; an image has more."""
_COLOURED = re.compile(r"\x1b\[([0-9;]*)m(.*?)\x1b\[0?m", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def not_text(space: Space[Any], where: str = "observation") -> str | None:
    """Why the values of a space cannot be written as text, with the part that cannot; None if they can."""
    if isinstance(space, spaces.Dict):
        parts = {f"{where}[{name!r}]": part for name, part in space.spaces.items()}
    elif isinstance(space, spaces.Tuple | spaces.OneOf):
        parts = {f"{where}[{number}]": part for number, part in enumerate(space.spaces)}
    elif isinstance(space, spaces.Sequence):
        parts = {f"{where}[…]": space.feature_space}
    else:
        return _not_a_number(space, where)
    problems = (not_text(part, name) for name, part in parts.items())
    return next((problem for problem in problems if problem), None)


def _not_a_number(space: Space[Any], where: str) -> str | None:
    if isinstance(space, spaces.Discrete) or (space.dtype is not None and space.dtype.kind == "U"):
        return None
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        numbers = math.prod(space.shape)
        if numbers <= MAX_NUMBERS:
            return None
        return f"{where} is {space!r:.200}, {numbers} numbers of which {MAX_NUMBERS} would be shown"
    return f"{where} is {space!r:.200}"


def text_of(value: Any) -> str:
    """A value in text. A dict has a line ``key: value`` for each key, an array of several dimensions a line for each row,
    other arrays and lists are ``[1, 2.5]`` with four digits. Raises :class:`ValueError` for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(_line(str(name), text_of(part)) for name, part in value.items())
    if isinstance(value, np.ndarray):
        if value.size > MAX_NUMBERS:
            raise ValueError(f"an array of {value.size} numbers; at most {MAX_NUMBERS} are shown")
        if value.ndim > 1:
            return "\n".join(map(text_of, value))
        value = value.tolist()
    if isinstance(value, list | tuple):
        texts = [text_of(part) for part in value]
        return "\n".join(texts) if any("\n" in text for text in texts) else f"[{', '.join(texts)}]"
    return _scalar(value)


def plain_of(rendered: str) -> str:
    """What a terminal shows, without colours: what has a coloured background, such as the player, is in brackets,
    ``[S]``, and what is coloured otherwise in parentheses."""

    def marked(found: re.Match[str]) -> str:
        codes = {int(code) for code in found[1].split(";") if code}
        behind = any(40 <= code <= 47 or 100 <= code <= 107 for code in codes)
        return f"[{found[2]}]" if behind else f"({found[2]})"

    return _ESCAPE.sub("", _COLOURED.sub(marked, rendered)).strip("\n")


def _line(name: str, text: str) -> str:
    return f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"


def _scalar(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int | str):
        return str(value)
    raise ValueError(f"{value!r:.80}, a {type(value).__name__}")
