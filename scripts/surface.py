"""The public names of AstraFlow, compared with those that are recorded in tests/surface.json.

The names are those of docs/modules.md, read from the files: a module's `__all__`, else what it defines or exports
again.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dev
from pages.public_modules import file_of, is_provisional, public_modules
from pages.signatures import (
    breaks_call,
    is_deprecated,
    members_of,
    names_of,
    origin,
    signature_of,
)
from workspace import tree_of

RECORD = dev.ROOT / "tests" / "surface.json"
FRAGMENTS = dev.ROOT / "changelog.d"
COMMAND = "python3 scripts/dev.py docs --record changelog.d/NAME.KIND.md"
BREAKING = ("changed", "removed")

Record = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """How a public name differs from the record; ``breaks``: what was right before may no longer work."""

    name: str
    what: str
    breaks: bool
    removed: bool = False
    added: bool = False

    def __str__(self) -> str:
        return f"{'BREAK' if self.breaks else 'change'} {self.name}: {self.what}"


def api_version() -> str:
    """The version of the plugin API, as the core has it."""
    node = names_of(tree_of_module("astraflow_core.component"))["API_VERSION"]
    assert isinstance(node, ast.Assign)
    return ".".join(map(str, ast.literal_eval(node.value)))


def read() -> Record:
    """What is recorded."""
    record: Record = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


@cache
def present() -> dict[str, Record]:
    """Full name of each public name → stability, signature and members."""
    public = public_modules()
    found: dict[str, Record] = {}
    for module in sorted(public):
        for name, node in names_of(tree_of_module(module)).items():
            entry: Record = {"stability": _stability(node, module)}
            if isinstance(node, ast.ImportFrom) and origin(node, name)[0] in public:
                entry["signature"] = f"is {'.'.join(origin(node, name))}"
            else:
                node = definition_of(node, name)
                entry["signature"] = signature_of(node)
                if members := members_of(node):
                    entry["members"] = members
            found[f"{module}.{name}"] = entry
    return found


def definition_of(node: ast.stmt, name: str) -> ast.stmt:
    """The definition behind a name that is exported again."""
    while isinstance(node, ast.ImportFrom):
        module, name = origin(node, name)
        every = names_of(tree_of_module(module))
        if name not in every:
            raise dev.Failure(f"{module} has no {name}, which another module exports again")
        node = every[name]
    return node


def tree_of_module(module: str) -> ast.Module:
    """The syntax tree of a module that is public or exported again."""
    file = file_of(module)
    if file is None:
        raise dev.Failure(f"{module}, which is public or exported again, does not exist")
    return tree_of(file)


def _stability(node: ast.stmt, module: str) -> str:
    if is_deprecated(node):
        return "deprecated"
    return "provisional" if is_provisional(module) else "stable"


def differences(recorded: Mapping[str, Record], now: Mapping[str, Record]) -> list[Difference]:
    """How the names differ, in order of name."""
    found: list[Difference] = []
    for name in sorted(recorded.keys() | now.keys()):
        if name not in now:
            found.append(Difference(name, "is gone", breaks=True, removed=True))
        elif name not in recorded:
            found.append(Difference(name, "is new", breaks=False, added=True))
        else:
            found += _of_one(name, recorded[name], now[name])
    return found


def _of_one(name: str, before: Record, after: Record) -> Iterator[Difference]:
    if before["stability"] != after["stability"]:
        yield Difference(name, f"{before['stability']} → {after['stability']}", breaks=False)
    old, new = before["signature"], after["signature"]
    if old != new:
        yield Difference(name, f"{old} → {new}", breaks_call(old, new))
    was, has = before.get("members", {}), after.get("members", {})
    implemented = "Protocol" in new
    dataclass = new.startswith("@dataclass")
    for member in sorted(was.keys() | has.keys()):
        place = f"{name}.{member}"
        if member not in has:
            yield Difference(place, "is gone", breaks=True)
        elif member not in was:
            demanded = dataclass and has[member].startswith(":") and "=" not in has[member]
            yield Difference(place, "is new", breaks=implemented or demanded)
        elif was[member] != has[member]:
            what = f"{was[member]} → {has[member]}"
            yield Difference(place, what, breaks_call(was[member], has[member]))


def refusals(
    found: list[Difference], record: Record, api: str, fragment: str, text: str
) -> list[str]:
    """Why the differences may not be recorded with a fragment of this name and text."""
    kind = fragment.removesuffix(".md").rpartition(".")[2]
    wrong = []
    for each in found:
        last = each.name.rpartition(".")[2]
        if each.breaks and (kind not in BREAKING or last not in text):
            wrong.append(
                f"{each}: needs a fragment of kind changed or removed that names `{last}` and what to write instead"
            )
        released = record["released"]
        if released is None:  # nothing outside this repository depends on it yet
            continue
        if each.breaks and _numbers(api)[0] <= _numbers(released)[0]:
            wrong.append(
                f"{each}: plugin API {released} is released, and a break needs the next major version; keep the old form, "
                "let it warn with DeprecationWarning, and describe it in a fragment of kind deprecated"
            )
        elif each.removed and record["names"][each.name]["stability"] != "deprecated":
            wrong.append(
                f"{each}: it was not deprecated; it must warn for a minor version at least first"
            )
        elif each.added and _numbers(api) <= _numbers(released):
            wrong.append(
                f"{each}: plugin API {released} is released; raise the minor version in astraflow_core.component.API_VERSION"
            )
    return wrong


def updated(record: Record, now: Mapping[str, Record], api: str, fragment: str) -> Record:
    """The record of ``now``: names keep the version since which they exist, changed ones get the fragment."""
    before = record["names"]
    touched = {each.name for each in differences(before, now)}
    names: dict[str, Record] = {}
    for name, entry in sorted(now.items()):
        old = before.get(name, {})
        changed = any(each == name or each.startswith(f"{name}.") for each in touched)
        told = fragment if changed else old.get("fragment", "")
        names[name] = {
            **entry,
            "since": old.get("since", api),
            **({"fragment": told} if told else {}),
        }
    return {"released": record["released"], "names": names}


def untold(record: Record) -> list[str]:
    """Recorded changes without their changelog fragment."""
    return [
        f"{name}: changelog.d/{entry['fragment']} is not there"
        for name, entry in record["names"].items()
        if "fragment" in entry and not (FRAGMENTS / entry["fragment"]).is_file()
    ]


def write(record: Record) -> None:
    """Record it."""
    text = json.dumps(record, indent=1, ensure_ascii=False)
    RECORD.write_text(text + "\n", encoding="utf-8")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def record(fragment: Path) -> list[Difference]:
    """Record the names as they are; ``fragment`` is the file that describes the differences, which are returned."""
    old, now, api = read(), present(), api_version()
    found = differences(old["names"], now)
    if not found:
        return []
    if not fragment.is_file() or fragment.resolve().parent != FRAGMENTS:
        raise dev.Failure(f"--record {fragment}: expected a file of changelog.d/ that describes it")
    text = fragment.read_text(encoding="utf-8")
    if wrong := refusals(found, old, api, fragment.name, text):
        raise dev.Failure("not recorded:\n" + "\n".join(wrong))
    write(updated(old, now, api, fragment.name))
    return found
