"""Parses replies by the types of the clients, strictly: ``python strict.py`` reads lines of JSON, each
``[module, type, reply, [allowed extra fields]]``, and ends with what does not fit."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, TypeAdapter


def extras(value: Any, place: str) -> Iterator[str]:
    """The fields that the types do not know, wherever they are."""
    if isinstance(value, BaseModel):
        yield from (f"{place}.{name}" for name in value.model_extra or {})
        for name in type(value).model_fields:
            yield from extras(getattr(value, name), f"{place}.{name}")
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from extras(each, f"{place}[{at}]")


def main() -> None:
    """Read the lines, and print what does not fit."""
    wrong, count = [], 0
    for line in sys.stdin:
        module, name, reply, allowed = json.loads(line)
        kind = getattr(importlib.import_module(module), name)
        try:
            parsed = TypeAdapter(kind).validate_python(reply)
        except ValueError as error:
            wrong.append(f"{name}: {error}\n{json.dumps(reply)[:500]}")
            continue
        found = [each for each in extras(parsed, name) if each.rpartition(".")[2] not in allowed]
        wrong += [f"{each} is no field of it" for each in found]
        count += 1
    sys.stdout.write("\n".join(wrong) or f"{count} fit")


if __name__ == "__main__":
    main()
