"""The conformance suites of a plugin's kinds: by its own tests, and for what these leave out by the defaults of the suite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from astraflow_contrib_plugin.checking.programs import TookTooLong, run_module
from astraflow_contrib_plugin.checking.result import CheckResult, judged, not_checked
from astraflow_contrib_plugin.checking.target import CheckedTarget

_TESTING = "astraflow_testing"
"""Not imported: a command needs no testing kit, until a check runs its suites in another process."""
_MOST_PROBLEMS = 20
_NO_TESTS = 5
_BY_DEFAULT = ("algorithm", "data_policy", "launcher", "prompt_source", "reward", "workflow")
"""Kinds whose suite needs nothing but the component."""
_GENERATED = '''"""Suites that the plugin's own tests leave out."""

import pytest

from astraflow_testing.conformance.subject import installed
'''
_CLASS = """
from astraflow_testing.conformance.{suite} import {base}


class Test{number}({base}):
    @pytest.fixture
    def {fixture}(self):
        return {value}
"""


@dataclass
class SuiteRuns:
    """What pytest wrote down. ``tests`` and ``suites`` as astraflow_testing.suites_used describes them."""

    tests: list[dict[str, str]] = field(default_factory=list)
    suites: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, file: Path) -> None:
        """Read a report of pytest."""
        found = json.loads(file.read_text(encoding="utf-8"))
        self.tests += found["tests"]
        self.suites |= found["suites"]

    def covers(self, suite: str, *names: str) -> bool:
        """Whether a suite ran on a component of one of these names, or on one that a test built by hand."""
        classes = {t["class"] for t in self.tests if t["suite"] == suite}
        for each in classes:
            own = [t for t in self.tests if t["class"] == each and t["suite"] == suite]
            subjects = {t["subject"] for t in own} - {""}
            if not subjects or subjects & set(names):
                return True
        return False


def check_suites(
    target: CheckedTarget, found: dict[str, Any], work: Path, deadline_s: float
) -> tuple[SuiteRuns, list[CheckResult]]:
    """Run the tests; the results ``tests``, ``conformance`` and ``mutants``."""
    runs = SuiteRuns()
    if find_spec(_TESTING) is None:
        reason = "astraflow-testing is not installed: pip install astraflow-testing"
        return runs, [not_checked(name, reason) for name in ("tests", "conformance", "mutants")]
    if target.tests is not None:
        _run(runs, target.tests, target.source or work, target, work / "own.json", deadline_s)
    left = list(_left_out(runs, found))
    generated = [entry for entry in left if entry[1]]
    if generated:
        folder = work / "generated"
        folder.mkdir()
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        file = folder / "test_left_out.py"
        file.write_text(_GENERATED + "".join(text for _, text in generated), encoding="utf-8")
        _run(runs, file, folder, target, work / "generated.json", deadline_s)
    unseen = [what for what, text in left if not text]
    return runs, [_own_tests(target, runs), _conformance(runs, unseen), _mutants(runs)]


def _run(
    runs: SuiteRuns,
    tests: Path,
    folder: Path,
    target: CheckedTarget,
    report: Path,
    deadline_s: float,
) -> None:
    arguments = [
        "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", f"{_TESTING}.suites_used",
        "--suites-report", str(report), str(tests),
    ]  # fmt: skip
    try:
        ended = run_module("pytest", arguments, folder, target.site, deadline_s)
    except TookTooLong as error:
        runs.problems.append(f"pytest {tests.name}: {error}")
        return
    if report.is_file():
        runs.add(report)
    if ended.code not in (0, 1, _NO_TESTS):
        runs.problems.append(f"pytest {tests.name}: {'; '.join(ended.lines[-3:])}")


def _left_out(runs: SuiteRuns, found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What no suite ran on, with the text of a test, empty if the suite needs fixtures that only its author can write."""
    number = 0
    for plugin in found["plugins"]:
        wanted: list[tuple[str, str, tuple[str, ...]]] = [
            ("manifest", plugin["manifest"], (plugin["manifest"],))
        ]
        wanted += [("command", name, (name,)) for name in plugin["commands"]]
        wanted += [
            (c["kind"], c["name"], (c["name"], f"{plugin['name']}/{c['name']}"))
            for c in plugin["components"]
        ]
        for suite, name, names in wanted:
            if not runs.covers(suite, *names):
                number += 1
                yield f"{suite} {name}", _test_of(suite, name, number)


def _test_of(suite: str, name: str, number: int) -> str:
    base = "".join(part.capitalize() for part in suite.split("_")) + "Conformance"
    if suite in ("manifest", "command"):
        fixture, value = suite, repr(name)
    elif suite == "transport":
        fixture, value = "table", repr({"use": name})
    elif suite in _BY_DEFAULT:
        fixture, value = "component", f"installed({suite!r}, {name!r})"
    else:
        return ""
    return _CLASS.format(suite=suite, base=base, number=number, fixture=fixture, value=value)


def _failures(tests: list[dict[str, str]]) -> list[str]:
    failed = [t for t in tests if t["outcome"] == "failed"]
    lines = [f"{t['id']}: {t['why']}" for t in failed[:_MOST_PROBLEMS]]
    more = len(failed) - len(lines)
    return [*lines, *([f"and {more} more"] if more else [])]


def _own_tests(target: CheckedTarget, runs: SuiteRuns) -> CheckResult:
    own = [t for t in runs.tests if not t["suite"]]
    if target.tests is None:
        reason = "its tests are not in the distribution; give the path of its source folder"
        return not_checked("tests", reason)
    passed = sum(1 for t in own if t["outcome"] == "passed")
    return judged(
        "tests", f"{passed} tests in addition to the suites passed", runs.problems + _failures(own)
    )


def _conformance(runs: SuiteRuns, unseen: list[str]) -> CheckResult:
    tests = [t for t in runs.tests if t["suite"]]
    counts = {
        outcome: sum(1 for t in tests if t["outcome"] == outcome)
        for outcome in ("passed", "skipped", "xfailed")
    }
    names = ", ".join(sorted({t["suite"] for t in tests}))
    summary = f"{names}: {counts['passed']} tests passed"
    summary += "".join(f", {n} {outcome}" for outcome, n in list(counts.items())[1:] if n)
    problems = _failures(tests)
    if not tests:
        problems += runs.problems
    if unseen and not problems:
        needs = f"{', '.join(unseen)}: no test runs its suite, which needs fixtures of its author"
        return not_checked("conformance", needs)
    return judged("conformance", summary, problems)


def _mutants(runs: SuiteRuns) -> CheckResult:
    if not runs.suites:
        return not_checked("mutants", "no conformance suite ran")
    problems, lines = [], []
    for name, verdict in sorted(runs.suites.items()):
        lines.append(f"{name} {verdict['caught']} of {verdict['mutants']}")
        if not verdict["recorded"]:
            problems.append(
                f"the suite {name} is not the one whose mutants were recorded: install astraflow-testing as published"
            )
        elif not verdict["mutants"] or verdict["caught"] < verdict["mutants"]:
            problems.append(
                f"the suite {name} catches {verdict['caught']} of its {verdict['mutants']} mutants"
            )
    return judged("mutants", f"caught by the suites: {', '.join(lines)}", problems)
