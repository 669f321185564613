"""The report of ``astraflow plugin check`` in a package, as ``plugins why`` shows it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.installed.discovery import Plugin
from astraflow_runtime.cli.installation.check_report import (
    FILE,
    LARGEST,
    digest_of,
    digest_of_files,
    facts_of,
)

Say = Callable[[dict[str, Any] | str], str]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "manifest.py").write_text("ASTRAFLOW_API = (1, 0)\n")
    return folder


@pytest.fixture
def plugin(package: Path) -> Plugin:
    return Plugin("mine", "mine.manifest", "dist-mine", "1.0", str(package / "manifest.py"))


@pytest.fixture
def report(package: Path) -> dict[str, Any]:
    checks = [{"verdict": "passed"}, {"verdict": "not checked"}]
    whole = {
        "distribution": {"name": "dist-mine", "version": "1.0"},
        "files": digest_of_files([package]),
        "checks": checks,
        "verdict": "incomplete",
    }
    return whole | {"digest": digest_of(whole)}


@pytest.fixture
def say(package: Path, plugin: Plugin) -> Say:
    def said(content: dict[str, Any] | str) -> str:
        text = content if isinstance(content, str) else json.dumps(content)
        (package / FILE).write_text(text)
        return facts_of(plugin)["check"]

    return said


def test_a_plugin_without_a_report_says_nothing(plugin: Plugin) -> None:
    assert facts_of(plugin) == {}
    assert facts_of(Plugin("m", "single", "d", "1", "/x/single.py")) == {}
    assert facts_of(Plugin("m", "mine.manifest", "d", "1", "/x/never_imported")) == {}


def test_a_true_report(say: Say, report: dict[str, Any]) -> None:
    told = f"incomplete (1 of 2 checks passed), as its authors say; report {report['digest']}"
    assert say(report) == told


def test_one_that_was_changed(say: Say, report: dict[str, Any]) -> None:
    assert "was changed after the check" in say(report | {"verdict": "passed"})


def test_one_of_another_version(say: Say, report: dict[str, Any]) -> None:
    report["distribution"]["version"] = "0.9"
    report["digest"] = digest_of(report)
    assert say(report) == f"its {FILE} is of version 0.9; 1.0 is installed"


def test_one_of_other_files(say: Say, report: dict[str, Any], package: Path) -> None:
    (package / "new.py").write_text("")
    assert "is for other files of version 1.0" in say(report)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[1]", "is not a report of `astraflow plugin check --json`"),
        ('{"distribution": 1}', "is not a report of"),
        (" " * (LARGEST + 1), "more than 1 MiB"),
    ],
)
def test_one_that_is_no_report(text: str, says: str, say: Say) -> None:
    assert says in say(text)


def test_the_digest_of_files_is_of_names_and_bytes(package: Path) -> None:
    content = hashlib.sha256(b"ASTRAFLOW_API = (1, 0)\n").hexdigest()
    line = f"mine/manifest.py {content}\n"
    expected = "sha256:" + hashlib.sha256(line.encode()).hexdigest()
    assert digest_of_files([package]) == expected
    (package / FILE).write_text("{}")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "manifest.pyc").write_text("")
    assert digest_of_files([package]) == expected
    (package / "manifest.py").rename(package / "other.py")
    assert digest_of_files([package]) != expected
