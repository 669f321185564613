"""What is wrong with the components and commands that a manifest declares."""

from __future__ import annotations

import re
from collections.abc import Sequence

from astraflow_core.capabilities import CAPABILITIES, unknown_flags
from astraflow_core.component import Command, Component, Kind
from astraflow_core.hookspecs import PROJECT
from astraflow_core.suggestions import did_you_mean

COMMANDS = f"{PROJECT}_commands"
"""The registration hook of commands."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_COMMAND = re.compile(r"[a-z][a-z0-9-]*( [a-z][a-z0-9-]*)?")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def component_problems(kind: Kind, listed: Sequence[object]) -> list[str]:
    """What is wrong with the components that a registration hook returned."""
    problems = []
    seen: set[str] = set()
    for entry in listed:
        if not isinstance(entry, Component):
            problems.append(f"{kind.hook}() returned {entry!r}; expected a Component")
            continue
        name: object = entry.name
        flags: object = entry.capabilities
        who = f"{kind} {name!r}"
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            problems.append(f"{who}: a name is lower-case letters, digits and underscores")
            continue
        if name in seen:
            problems.append(f"{who} is provided twice")
        seen.add(name)
        for label, reference in (("target", entry.target), ("config", entry.config)):
            if label == "config" and reference is None:
                continue
            if not (isinstance(reference, str) and _REFERENCE.fullmatch(reference)):
                problems.append(
                    f"{who}: {label} {reference!r} is not of the form 'module:attribute'"
                )
        if not isinstance(flags, frozenset):
            problems.append(f"{who}: capabilities must be a frozenset, not {flags!r}")
            continue
        problems += [
            f"{who}: unknown capability {flag!r}{did_you_mean(str(flag), CAPABILITIES[kind])}"
            for flag in unknown_flags(kind, flags)
        ]
    return problems


def command_problems(listed: Sequence[object]) -> list[str]:
    """What is wrong with the commands that a manifest returned."""
    problems = []
    seen: set[object] = set()
    for entry in listed:
        if not isinstance(entry, Command):
            problems.append(f"{COMMANDS}() returned {entry!r}; expected a Command")
            continue
        name: object = entry.name
        who = f"command {name!r}"
        if not (isinstance(name, str) and _COMMAND.fullmatch(name)):
            problems.append(
                f"{who}: a name is one word or two, each of lower-case letters, digits and hyphens"
            )
            continue
        if name in seen:
            problems.append(f"{who} is provided twice")
        seen.add(name)
        target: object = entry.target
        if not (isinstance(target, str) and _REFERENCE.fullmatch(target)):
            problems.append(f"{who}: target {target!r} is not of the form 'module:function'")
        for label, text in (("summary", entry.summary), ("group", entry.group)):
            line: object = text
            if not (isinstance(line, str) and line.strip() and "\n" not in line):
                problems.append(f"{who}: {label} {line!r} is not a line of text")
    return problems
