"""Tool calls in plain text as Python writes them, for models that a JSON schema confuses.

``calculate(expression="6 * 7")``, alone on a line: the form that Llama 3.2 and 4 call pythonic, with one call a line in
the place of a list. The offer is a signature, which takes a fraction of the tokens of a schema.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

STYLE = "python"
_LINE = re.compile(r"^[ \t]*(\w[\w.-]*\(.*\))[ \t]*$", re.MULTILINE)
_LONGEST = 4096
"""Characters of a line that is parsed: Python's parser is recursive."""


def offer(tools: Sequence[Mapping[str, Any]]) -> str:
    """A text that describes tools to a model."""
    lines = "\n".join(_signature(tool["function"]) for tool in tools)
    return f"You can call these functions. Write a call alone on a line.\n{lines}"


def python_calls(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The text without its calls; names and arguments (JSON text) of the calls. A line that is no call with literal
    keyword arguments stays text."""
    found: list[tuple[str, str]] = []

    def taken(match: re.Match[str]) -> str:
        call = _call(match[1])
        if call is None:
            return match[0]
        found.append(call)
        return ""

    rest = _LINE.sub(taken, text)
    return (rest.strip() if found else text), found


def written(name: str, arguments: Any) -> str:
    """A call as :func:`python_calls` reads it."""
    if not isinstance(arguments, Mapping):
        return f"{name}({arguments})"
    return f"{name}({', '.join(f'{key}={_literal(value)}' for key, value in arguments.items())})"


def _signature(function: Mapping[str, Any]) -> str:
    properties = function.get("parameters", {}).get("properties", {})
    said = ", ".join(
        f"{name}: {schema.get('type', 'any') if isinstance(schema, Mapping) else 'any'}"
        for name, schema in properties.items()
    )
    description = " ".join(function.get("description", "").split())
    return f"{function['name']}({said})" + (f"  # {description}" if description else "")


def _call(line: str) -> tuple[str, str] | None:
    if len(line) > _LONGEST:
        return None
    name = line[: line.index("(")]
    try:
        # The name may have characters that Python's names cannot have, such as a hyphen.
        call = ast.parse("f" + line[len(name) :], mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        arguments = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
        if None in arguments or len(arguments) < len(call.keywords):
            return None
        return name, json.dumps(arguments, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
