"""Rotation of heavy tests: a commit runs a share of them, chosen by the sources that they test.

A test with the mark ``turns`` lists the files that it tests, as patterns. It is run by every commit in which these are
not as they were when it passed and ``dev.py heavy --record-durations`` recorded that, and by a third of all other
commits.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("core", "libs/*", "testing")
EVERYTHING = (*SOURCES, "runtime", "plugins/*/*", "contrib/*", "contrib/*/*")
RECORD = ROOT / "tests" / "turns.json"
"""Test → the digest of its files when it passed."""
MARK = "turns"
SHARES = 3


@cache
def turn(shares: int, places: tuple[str, ...] = SOURCES) -> int:
    """Which of ``shares`` it is, 0 to ``shares`` - 1: the same for equal sources in ``places``."""
    digest = hashlib.sha256()
    for file in sorted(file for place in places for file in ROOT.glob(f"{place}/src/**/*.py")):
        digest.update(file.read_bytes())
    return int.from_bytes(digest.digest()[:4], "big") % shares


@cache
def digest_of(*patterns: str) -> str:
    """Of the files that match, by name and :func:`content`; at least one has to match each pattern."""
    digest = hashlib.sha256()
    for pattern in patterns:
        files = sorted(file for file in ROOT.glob(pattern) if file.is_file())
        if not files:
            raise pytest.UsageError(f"a test takes turns by {pattern!r}, and there is no such file")
        for file in files:
            digest.update(f"{file.relative_to(ROOT)}\0".encode())
            digest.update(content(file.read_text(encoding="utf-8"), file.suffix))
    return digest.hexdigest()[:16]


def content(text: str, suffix: str) -> bytes:
    """What counts of a file: of Python the code, without comments and docstrings."""
    if suffix != ".py":
        return text.encode()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [each for each in node.body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree).encode()


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@dataclass(frozen=True)
class Subject:
    """The files that a test which takes turns depends on. Tests of one ``unit`` share what they run, and so their turn;
    ``digest`` is of the files."""

    unit: str
    digest: str


def subjects(items: Iterable[pytest.Item]) -> dict[str, Subject]:
    """Of the tests that take turns, by node id."""
    found = {}
    for item in items:
        if (mark := item.get_closest_marker(MARK)) is not None:
            file = item.nodeid.partition("::")[0]
            digest = digest_of("constraints.txt", file, *mark.args)
            found[item.nodeid] = Subject(mark.kwargs.get("unit", item.nodeid), digest)
    return found


def not_due(now: Mapping[str, Subject], recorded: Mapping[str, str], share: int) -> set[str]:
    """Those of ``now`` (:func:`subjects`) that other commits run."""
    changed = {each.unit for test, each in now.items() if recorded.get(test) != each.digest}
    units = sorted({each.unit for each in now.values()})
    others = {unit for number, unit in enumerate(units) if number % SHARES != share} - changed
    return {test for test, each in now.items() if each.unit in others}


def passed(ended: Mapping[str, tuple[str, Subject]]) -> dict[str, str]:
    """What is recorded of tests that ``ended`` as "passed", "skipped" or "failed": the digests of those that passed, and of
    those skipped if another of the unit passed, since suites skip what a component does not declare."""
    units = {subject.unit for outcome, subject in ended.values() if outcome == "passed"}
    return {
        test: subject.digest
        for test, (outcome, subject) in ended.items()
        if outcome == "passed" or (outcome == "skipped" and subject.unit in units)
    }


def read() -> dict[str, str]:
    """What is recorded."""
    return dict(json.loads(RECORD.read_text(encoding="utf-8"))) if RECORD.exists() else {}


def write(passed: Mapping[str, str]) -> None:
    """Record these too."""
    known = {**read(), **passed}
    kept = {
        test: known[test] for test in sorted(known) if (ROOT / test.partition("::")[0]).exists()
    }
    RECORD.write_text(f"{json.dumps(kept, indent=1)}\n", encoding="utf-8")
