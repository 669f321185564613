"""Reads TOML with ``extends`` and overrides into one raw table, keeping where each value came from."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from astraflow_core.errors import ConfigError
from astraflow_core.suggestions import did_you_mean

Raw = dict[str, Any]
OVERRIDE = "--set"
"""The label of what is set on the command line."""
_CORE_KEYS = {
    "prompts": {"shuffle", "data"}, "engine": {"replicas", "devices"}, "trainer": {"ranks"},
    "engines": {"replicas", "devices", "model", "follows", "behind"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origin:
    """Who set a value (a file, ``"--set"`` …) and the folder that its relative paths start from."""

    label: str
    folder: Path


@dataclass
class Layers:
    """Raw tables merged in order; ``origins`` maps the dotted path of each leaf to who set it; ``files``: labels of
    those that extend each other, the base first; ``notes``: what ``--set`` left out."""

    raw: Raw = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, table: Mapping[str, Any], origin: Origin) -> None:
        """Merge a table over those before: tables key by key, anything else replaced.

        A table that names another component replaces the previous one except for keys of the core, such as ``data`` of prompts.
        """
        self._merge(self.raw, table, "", origin)

    def put(self, path: str, value: Any, origin: Origin) -> str | None:
        """Set one dotted path, list items by index; returns what is wrong with the path, if anything."""
        parts = path.split(".")
        here: Any = self.raw
        for index, part in enumerate(parts[:-1]):
            if isinstance(here, list):
                if problem := _bad_index(here, part, ".".join(parts[:index])):
                    return problem
                here = here[int(part)]
            elif isinstance(here, dict):
                here = here.setdefault(part, {})
            else:
                return f"{'.'.join(parts[:index])} is {here!r}, not a table"
        prefix, last = ".".join(parts[:-1]), parts[-1]
        if isinstance(here, list):
            if problem := _bad_index(here, last, prefix):
                return problem
            here[int(last)] = _plain(value)
            self._mark(path, value, origin)
            return None
        if not isinstance(here, dict):
            return f"{prefix} is {here!r}, not a table"
        self._merge(here, {last: value}, prefix, origin)
        return None

    def origin(self, path: str) -> Origin | None:
        """Who set the value at ``path``, or the table or list that holds it."""
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path.rpartition(".")[0]
        return None

    def folder(self, path: str) -> Path:
        """Where the relative path at ``path`` starts."""
        origin = self.origin(path)
        return origin.folder if origin else Path.cwd()

    def is_overridden(self, table: str) -> bool:
        """Whether all that is known of a table comes from ``--set``."""
        return {o.label for k, o in self.origins.items() if k.startswith(f"{table}.")} == {OVERRIDE}

    def taken_over(self, table: str) -> dict[str, str]:
        """Key → file, of the keys that a component's table has from a file that is extended by the one that
        names the component: it names the same one again, perhaps as if nothing else were set."""
        named = self.origins.get(f"{table}.use")
        if named is None or named.label not in self.files:
            return {}
        bases = self.files[: self.files.index(named.label)]
        return {
            key.removeprefix(f"{table}."): origin.label
            for key, origin in self.origins.items()
            if key.startswith(f"{table}.") and origin.label in bases
        }

    def _merge(self, into: Raw, table: Mapping[str, Any], path: str, origin: Origin) -> None:
        if "use" in table and "use" in into and table["use"] != into["use"]:
            place = "engines" if path.startswith("engines.") else path.rpartition(".")[2]
            gone = into.keys() - _CORE_KEYS.get(place, set())
            if origin.label == OVERRIDE and (lost := ", ".join(sorted(gone - {"use"}))):
                self.notes.append(
                    f"{path}: {into['use']!r} was replaced by --set, together with its {lost}"
                )
            for key in gone:
                self._forget(f"{path}.{key}")
                del into[key]
        for key, value in table.items():
            child = f"{path}.{key}" if path else key
            if isinstance(value, Mapping):
                if not isinstance(into.get(key), dict):
                    self._forget(child)
                    into[key] = {}
                if not value:
                    self.origins[child] = origin
                self._merge(into[key], value, child, origin)
            else:
                into[key] = _plain(value)
                self._mark(child, into[key], origin)

    def _mark(self, path: str, value: Any, origin: Origin) -> None:
        self._forget(path)
        if isinstance(value, Mapping) and value:
            for key, item in value.items():
                self._mark(f"{path}.{key}", item, origin)
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            for index, item in enumerate(value):
                self._mark(f"{path}.{index}", item, origin)
        else:
            self.origins[path] = origin

    def _forget(self, path: str) -> None:
        for key in [key for key in self.origins if key == path or key.startswith(f"{path}.")]:
            del self.origins[key]


def read_file(path: Path) -> Layers:
    """A file and the chain of files that it ``extends``, the base first."""
    chain: list[tuple[Path, Raw]] = []
    following: Path | None = path
    while following is not None:
        seen = [file for file, _ in chain]
        if following.resolve() in [file.resolve() for file in seen]:
            loop = " → ".join(map(str, [*seen, following]))
            raise ConfigError(
                [f"extends: the files extend each other in a cycle: {loop}"], str(path)
            )
        table = parse_file(following)
        base = table.pop("extends", None)
        if base is not None and not (isinstance(base, str) and base):
            raise ConfigError(
                [f"extends: must be the path of a file; received {base!r}"], str(following)
            )
        chain.append((following, table))
        following = None if base is None else following.parent / base
    layers = Layers()
    for file, table in reversed(chain):
        layers.files.append(str(file))
        layers.add(table, Origin(str(file), file.parent))
    return layers


def parse_file(path: Path) -> Raw:
    """The TOML of one file; errors carry file, line and column."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        nearby = [file.name for file in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, nearby) or f"; looked in {path.parent.absolute()}"
        raise ConfigError([f"no such file{hint}"], str(path)) from None
    except IsADirectoryError:
        raise ConfigError(["is a folder; name the TOML file of a run"], str(path)) from None
    except OSError as error:
        raise ConfigError([f"cannot be read: {error.strerror}"], str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"is not UTF-8 text (byte {error.start})"], str(path)) from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        found = re.search(r" \(at line (\d+), column (\d+)\)$", message)
        if found:
            line, column = found.groups()
            message = message[: found.start()]
        else:
            line, column = str(text.count("\n") + 1), "1"
        raise ConfigError([f"line {line}, column {column}: {message}"], f"{path}:{line}") from error


def apply_overrides(layers: Layers, overrides: Sequence[str]) -> list[str]:
    """Apply ``a.b.c=VALUE`` texts in order, first those that choose a component, outer ones before; returns problems."""
    problems = []
    origin = Origin(OVERRIDE, Path.cwd())
    split = [(*text.partition("="), text) for text in overrides]
    for key, equals, value, text in sorted(
        split, key=lambda e: e[0].count(".") if e[0].strip().endswith(".use") else float("inf")
    ):
        path = key.strip()
        if not (equals and path and all(path.split("."))):
            problems.append(f"--set {text!r}: expected KEY=VALUE, such as run.steps=10")
        elif path.split(".")[0] == "extends":
            problems.append(f"--set {text!r}: extends is only allowed in a file")
        elif problem := layers.put(path, parse_value(value.strip()), origin):
            problems.append(f"--set {text!r}: {problem}")
    return problems


def parse_value(text: str) -> Any:
    """``text`` as a TOML value if it is one (numbers, booleans, quoted strings, lists, tables), else as
    the string that it is."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = table.get("value")
    dated = isinstance(value, datetime.date | datetime.time)
    return text if len(table) != 1 or dated else value


def _plain(value: Any) -> Any:
    """A copy with types of TOML only: a mapping given in Python may hold tuples and paths."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def _bad_index(items: list[Any], part: str, path: str) -> str | None:
    if part.isdecimal() and int(part) < len(items):
        return None
    return f"{path} is a list of {len(items)}; {part!r} is not a valid index"
