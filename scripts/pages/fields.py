"""The fields of a tree of structs, with the docstrings below them."""

from __future__ import annotations

import ast
import inspect
import itertools
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import dev
import msgspec
import workspace

View = dict[str, str]


def described(struct: type, prefix: str = "") -> View:
    """Dotted key -> meaning of every field of a struct, and of those below it; ``NAME`` stands for a name, ``N`` for a
    place in a list."""
    found: View = {}
    hints, meanings = get_type_hints(struct), _meanings(struct)
    for field in msgspec.structs.fields(struct):
        key = f"{prefix}{field.encode_name}"
        below, infix = _part(hints[field.name])
        if field.name not in meanings:
            raise dev.Failure(f"{struct.__name__}.{field.name} needs a docstring below it")
        if below is None or infix:
            found[key] = meanings[field.name]
        if below is not None:
            found |= described(below, f"{key}.{infix}")
    return found


def _part(annotation: Any) -> tuple[type | None, str]:
    """The struct that a field holds, and what stands before its keys."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation, ""
    infix = {list: "N.", dict: "NAME."}.get(get_origin(annotation))
    item = get_args(annotation)[-1] if infix else None
    if infix and isinstance(item, type) and issubclass(item, msgspec.Struct):
        return item, infix
    return None, ""


@cache
def _meanings(struct: type) -> dict[str, str]:
    """Field -> the docstring below it, inherited ones too."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base is msgspec.Struct or not issubclass(base, msgspec.Struct):
            continue
        tree = workspace.tree_of(Path(inspect.getfile(base)))
        (body,) = (
            n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == base.__name__
        )
        for field, text in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[field.target.id] = str(text.value.value)
    return found
