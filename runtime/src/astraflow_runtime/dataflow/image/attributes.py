"""Attributes of the state that are saved and restored as they are."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def taken(kind: type[T], source: Any, **given: Any) -> T:
    """A ``kind`` whose fields are the attributes of ``source`` with the same names, with or without an underscore
    before it, and those ``given``. Collections are copied, what is in them is not."""
    for name in kind.__struct_fields__:
        if name not in given:
            given[name] = _copied(getattr(source, attribute_of(source, name)))
    return kind(**given)


def put(target: Any, image: msgspec.Struct, *left_out: str) -> None:
    """Set the attributes of ``target`` from all fields of ``image`` but those ``left_out``. Each collection gets the type
    that it has in ``target``."""
    for name in image.__struct_fields__:
        if name not in left_out:
            attribute = attribute_of(target, name)
            setattr(target, attribute, _like(getattr(target, attribute), getattr(image, name)))


def attribute_of(owner: Any, name: str) -> str:
    """The name of the attribute that a field stands for."""
    return name if hasattr(owner, name) else f"_{name}"


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list | deque | tuple):
        return list(value)
    if isinstance(value, set):
        return sorted(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value)
    return value


def _like(before: Any, value: Any) -> Any:
    if isinstance(before, Counter):
        return Counter(value)
    if isinstance(before, deque):
        return deque(value, before.maxlen)
    if isinstance(before, set):
        return set(value)
    return value
