"""Files of other systems as nested tables."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from astraflow_core.errors import UserError

MOST_BYTES = 1 << 20
MOST_FILLED = 1 << 16
_OVERRIDE = re.compile(r"(?:\+{1,2})?([A-Za-z_][\w-]*(?:\.[\w-]+)+)=(.*)", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=([^(`]+)", re.DOTALL)
_SUM = re.compile(r"\$\(\(([\w\s$+*/()-]{1,200}?)\)\)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-((?:[^{}]|\{[^{}]*\})*))?\}|([A-Za-z_]\w*))")
_REFERENCE = re.compile(r"\$\{([\w.-]+)\}")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""YAML 1.1 takes 5e-6 for a string."""

Nested = dict[str, Any]


def read_files(files: Sequence[Path]) -> Nested:
    """The tables of all files, later ones over earlier ones, with references such as ``${run.name}`` replaced where they
    name a value. :class:`UserError` for a file that is neither YAML, JSON, TOML nor a script with overrides."""
    found: Nested = {}
    for file in files:
        found = merged(found, _read(file))
    replaced: Nested = _replaced(found, found)
    return replaced


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Nested:
    """Both tables, with the values of ``above`` where both have one."""
    both = dict(below)
    for name, value in above.items():
        old = both.get(name)
        both[name] = (
            merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return both


def _read(file: Path) -> Nested:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise UserError(f"{file} has more than {MOST_BYTES} bytes; expected a configuration")
        text = file.read_text("utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not text: {error}") from error
    try:
        found = _parsed(file, text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{file} cannot be read as {file.suffix or 'a script'}: {error}") from error
    if not isinstance(found, dict) or not found:
        raise UserError(f"{file} has no settings; expected a table of names and values")
    return found


def _parsed(file: Path, text: str) -> Any:
    match file.suffix.lower():
        case ".yaml" | ".yml":
            return _numbers(yaml.safe_load(text))
        case ".json":
            return json.loads(text)
        case ".toml":
            return tomllib.loads(text)
        case ".sh" | ".txt" | "":
            return _overrides(text)
    raise UserError(
        f"{file}: expected .yaml, .json or .toml, or a script (.sh) with overrides such as trainer.nnodes=1"
    )


def _overrides(text: str) -> Nested:
    """What stands as ``a.b=value`` among the words of a script. Variables to which it gives a plain value, at the beginning of a
    line, are replaced by their last one, as are those with a default (``${N:-8}``); others are left as they are."""
    found: Nested = {}
    variables: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        whole = _SUM.sub(lambda match: _computed(match, variables), line.strip())
        words = [] if whole.startswith("#") else _words(whole)
        if words[:1] in (["export"], ["local"], ["readonly"]):
            del words[0]
        if words and (given := _ASSIGNED.fullmatch(words[0])):
            variables[given[1]] = _filled(given[2], variables)
        for word in words:
            if match := _OVERRIDE.fullmatch(word):
                place, (*path, last) = found, match[1].split(".")
                for step in path:
                    place = place.setdefault(step, {})
                    if not isinstance(place, dict):
                        raise ValueError(f"{match[1]} is set below a value")
                value = _filled(match[2], variables)
                place[last] = _numbers(yaml.safe_load(value) if value else "")
    return found


def _filled(text: str, variables: Mapping[str, str], depth: int = 4) -> str:
    """Known variables, and the defaults of others, in their place."""

    size = 0

    def there(match: re.Match[str]) -> str:
        nonlocal size
        name, default = match[1] or match[3], match[2]
        value = variables.get(name) or (match[0] if default is None else default.strip("\"'"))
        size += len(value)
        if size > MOST_FILLED:
            raise ValueError(f"variables make more than {MOST_FILLED} characters of one word")
        return value

    filled = _VARIABLE.sub(there, text)
    return text if filled == text or not depth else _filled(filled, variables, depth - 1)


def _computed(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """The value of a sum such as ``$((1024 * 8))``; the sum itself, as one word, if it has unknown variables."""
    text = re.sub(
        r"[A-Za-z_]\w*", lambda name: variables.get(name[0], name[0]), match[1].replace("$", "")
    )
    try:
        return str(int(_value(ast.parse(text.strip(), mode="eval").body)))
    except (SyntaxError, ValueError, ArithmeticError):
        return "".join(match[0].split())  # one word


def _value(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as sign, right):
            one, other = _value(left), _value(right)
            return {ast.Add: one + other, ast.Sub: one - other, ast.Mult: one * other}.get(
                type(sign), one // other if isinstance(sign, ast.Div) else 0
            )
    raise ValueError("not a sum")


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quotation that spans lines, which holds no override
        return []


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _replaced(value: Any, root: Nested, depth: int = 8) -> Any:
    if isinstance(value, dict):
        return {name: _replaced(each, root, depth) for name, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, root, depth) for each in value]
    if not isinstance(value, str) or "${" not in value or not depth:
        return value

    def there(match: re.Match[str]) -> str:
        found: Any = root
        for step in match[1].split("."):
            found = found.get(step) if isinstance(found, dict) else None
        return match[0] if found is None or isinstance(found, (dict, list)) else str(found)

    text = _REFERENCE.sub(there, value)
    return value if text == value else _replaced(text, root, depth - 1)
