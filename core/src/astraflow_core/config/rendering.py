"""Turns pydantic's errors into one line each: dotted path, what was expected, what was received."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from astraflow_core.suggestions import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


def render(error: ValidationError, model: type[BaseModel], where: str = "") -> list[str]:
    """Each error of ``model``'s validation as one line; ``where`` is the path of the validated table."""
    return [_line(detail, model, where) for detail in error.errors(include_url=False)]


def unknown_key(path: str, value: Any, allowed: Iterable[str]) -> str:
    """The line for a key that nobody knows."""
    names = sorted(allowed)
    hint = did_you_mean(path.rpartition(".")[2], names)
    keys = f"allowed: {', '.join(names)}" if names else "no keys are allowed here"
    return f"{path}: unknown key (received {shown(value)}){hint or ';'} {keys}"


def shown(value: Any) -> str:
    """A received value, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def join(*parts: object) -> str:
    """Dotted path of parts, leaving empty ones out."""
    return ".".join(str(part) for part in parts if str(part))


def _line(detail: Mapping[str, Any], model: type[BaseModel], where: str) -> str:
    location = [part for part in detail["loc"] if part != "[key]"]
    path = join(where, *location) or "the file"
    value = detail["input"]
    if detail["type"] == "extra_forbidden":
        owner = model_at(model, location[:-1])
        return unknown_key(path, value, owner.model_fields if owner is not None else ())
    if detail["type"] == "missing":
        owner = model_at(model, location[:-1])
        about = owner.model_fields[location[-1]].description if owner is not None else None
        noun = "table" if model_at(model, location) is not None else "key"
        return f"{path}: this {noun} is required{f' ({about})' if about else ''}"
    text = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    text = text.replace("Input should be", "must be").replace("String should", "must")
    if detail["type"] in ("model_type", "dict_type", "model_attributes_type"):
        text = "must be a table"
    if detail["loc"] and detail["loc"][-1] == "[key]":
        return f"{path}: the name {text}"
    return f"{path}: {text[:1].lower()}{text[1:]}; received {shown(value)}"


def model_at(model: type[BaseModel], location: Iterable[str | int]) -> type[BaseModel] | None:
    """The model that validates the value at ``location`` inside ``model``, if it is one."""
    here: Any = model
    for part in location:
        if _is_model(here):
            field = here.model_fields.get(part)
            if field is None:
                return None
            here = field.annotation
        else:
            here = _item(here)
        if here is None:
            return None
    return next(models_in(here), None)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models among the alternatives of an annotation."""
    if _is_model(annotation):
        yield annotation
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        for alternative in typing.get_args(annotation):
            yield from models_in(alternative)


def _item(annotation: Any) -> Any:
    """The annotation of the values of a dict, list or tuple (through unions and ``Annotated``)."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _item(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return next((item for item in map(_item, arguments) if item is not None), None)
    if origin is dict or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return arguments[1]
    if origin in (list, tuple, set, frozenset):
        return arguments[0]
    return None


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and hasattr(annotation, "model_fields")
