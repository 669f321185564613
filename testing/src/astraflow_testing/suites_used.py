"""A plugin of pytest that writes down which conformance suites ran, on what, and with which result.

``pytest -p astraflow_testing.suites_used --suites-report FILE`` writes a JSON document: ``tests``, each with its ``id``,
``outcome`` and ``why`` it did not pass, the ``suite`` that it belongs to (empty for a test of the plugin's own) and its
``subject``, the name of the component or command; and ``suites``, with the verdict on each that ran.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.suite_verdicts import verdict_on

OPTION = "--suites-report"
_SUITES = "astraflow_testing.conformance."
_DEMANDED = " requires: "
"""As in a failure of a suite."""
_MOST = 300
_entries = pytest.StashKey[dict[str, dict[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare ``--suites-report``."""
    parser.addoption(OPTION, metavar="FILE", help="write which conformance suites ran")


def pytest_configure(config: pytest.Config) -> None:
    """Begin with no test."""
    config.stash[_entries] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the outcome of a test; a part of it that fails outweighs one that passes."""
    report = yield
    entries = item.config.stash[_entries]
    entry = entries.setdefault(
        item.nodeid, {"id": item.nodeid, "outcome": "passed", "why": "", **_of_suite(item)}
    )
    entry["subject"] = entry["subject"] or _subject(item, entry["suite"])
    if report.outcome != "passed" and entry["outcome"] == "passed":
        entry["outcome"] = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        entry["why"] = _why(report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file."""
    file = session.config.getoption(OPTION)
    if file is None:
        return
    tests = list(session.config.stash[_entries].values())
    suites = sorted({entry["suite"] for entry in tests} - {""})
    document = {"tests": tests, "suites": {name: asdict(verdict_on(name)) for name in suites}}
    Path(file).write_text(json.dumps(document), encoding="utf-8")


def _of_suite(item: pytest.Item) -> dict[str, str]:
    """The suite that the class of a test inherits, unless the test is the class's own."""
    lineage = getattr(getattr(item, "cls", None), "__mro__", ())
    suites = [c for c in lineage if c.__module__.startswith(_SUITES) and _is_suite(c)]
    name = getattr(item, "originalname", item.name)
    home = next((c for c in lineage if name in vars(c)), None)
    theirs = home is not None and home.__module__.startswith("astraflow_testing.")
    suite = suites[0].__module__.removeprefix(_SUITES) if suites and theirs else ""
    return {"suite": suite, "class": item.nodeid.rpartition("::")[0], "subject": ""}


def _is_suite(cls: type[Any]) -> bool:
    return cls.__name__.endswith("Conformance") and cls.__name__ != "Conformance"


def _subject(item: pytest.Item, suite: str) -> str:
    fixtures: dict[str, Any] = getattr(item, "funcargs", {})
    if suite in ("manifest", "command"):
        return str(fixtures.get(suite, ""))
    if suite == "transport":
        return str(fixtures.get("table", {}).get("use", ""))
    recipe = getattr(fixtures.get("component"), "recipe", None)
    return "" if recipe is None else str(recipe.use)


def _why(report: pytest.TestReport) -> str:
    """The first line of what a test said, and what it demands instead where it says that."""
    if isinstance(report.longrepr, tuple):  # a skip: file, line, reason
        text = str(report.longrepr[2])
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(crash.message if crash is not None else report.longrepr or "")
    first, *more = text.strip().splitlines() or [""]
    demanded = next((line for line in more if _DEMANDED in line), "")
    return "; ".join(filter(None, (first[:_MOST], demanded[:_MOST])))
