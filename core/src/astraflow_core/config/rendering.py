"""Turns pydantic's errors into one line each: dotted path, what was expected, what was received."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from astraflow_core.suggestions import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


_WORDS = {
    "Input should": "must",
    "String should": "must",
    "Tuple should": "must",
    "List should": "must",
    "tuple": "list",
    "dictionary": "table",
    " after validation": "",
}
"""pydantic's terms → those of TOML."""


def render(error: ValidationError, model: type[BaseModel], where: str = "") -> list[str]:
    """Each error of ``model``'s validation as one line; ``where`` is the path of the validated table.

    The alternatives of a union, which pydantic reports one by one, share a line.
    """
    lines: dict[str, dict[str, None]] = {}
    received: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        location = true_location(model, detail["loc"])
        path = join(where, *location) or "the file"
        text, shows_input = _text(detail, model, location, path)
        lines.setdefault(path, {})[text] = None
        received[path] = f"; received {shown(detail['input'])}" if shows_input else ""
    return [f"{path}: {', or '.join(texts)}{received[path]}" for path, texts in lines.items()]


def unknown_key(path: str, value: Any, allowed: Iterable[str]) -> str:
    """The line for an unknown key."""
    names = sorted(allowed)
    return f"{path}: {_unknown(path, value, names)}"


def shown(value: Any) -> str:
    """A received value, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def join(*parts: object) -> str:
    """Dotted path of parts, leaving empty ones out."""
    return ".".join(str(part) for part in parts if str(part))


def _unknown(path: str, value: Any, names: list[str]) -> str:
    hint = did_you_mean(path.rpartition(".")[2], names)
    keys = f"allowed: {', '.join(names)}" if names else "no keys are allowed here"
    return f"unknown key (received {shown(value)}){hint or ';'} {keys}"


def _text(
    detail: Mapping[str, Any], model: type[BaseModel], location: Sequence[str | int], path: str
) -> tuple[str, bool]:
    """The text of an error, and whether the received value is appended."""
    owner = model_at(model, location[:-1])
    fields = owner.model_fields if owner is not None else {}
    if detail["type"] == "extra_forbidden":
        return _unknown(path, detail["input"], sorted(fields)), False
    if detail["type"] == "missing":
        about = fields[str(location[-1])].description if location[-1] in fields else None
        noun = "table" if model_at(model, location) is not None else "key"
        return f"this {noun} is required{f' ({about})' if about else ''}", False
    if detail["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return "must be a table", True
    if detail["type"] == "string_type":
        return f"must be a string in quotes (--set '{path}=\"…\"')", True
    text = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    if detail["loc"] and detail["loc"][-1] == "[key]":
        return f"the name {text}", False
    return f"{text[:1].lower()}{text[1:]}", True


def true_location(model: type[BaseModel], location: Iterable[str | int]) -> list[str | int]:
    """Where an error is in the table: pydantic's location without its marks of keys and alternatives."""
    true: list[str | int] = []
    here: Any = model
    for part in location:
        if part == "[key]":
            continue
        members = alternatives(here)
        if len(members) > 1:  # the part names the alternative that was tried
            here = next((m for m in members if getattr(m, "__name__", None) == part), None)
            continue
        true.append(part)
        here = _below(members[0], part) if members else None
    return true


def model_at(model: type[BaseModel], location: Iterable[str | int]) -> type[BaseModel] | None:
    """The model that validates the value at ``location`` inside ``model``, if it is one."""
    here: Any = model
    for part in location:
        here = next(filter(None, (_below(member, part) for member in alternatives(here))), None)
    return next(models_in(here), None)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models among the alternatives of an annotation."""
    return filter(_is_model, alternatives(annotation))


def alternatives(annotation: Any) -> list[Any]:
    """The alternatives of an annotation, ``None`` left out; itself if it is not a union."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return alternatives(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [m for part in typing.get_args(annotation) for m in alternatives(part)]
    return [] if annotation in (None, type(None)) else [annotation]


def _below(annotation: Any, part: str | int) -> Any:
    """The annotation of the field, or of an item, of a model, dict, list or tuple."""
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        return None if field is None else field.annotation
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return arguments[1]
    if origin in (list, tuple, set, frozenset):
        return arguments[0]
    return None


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and hasattr(annotation, "model_fields")
