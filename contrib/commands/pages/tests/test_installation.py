"""What is installed, and why a component can be chosen, as the command line says; a name is a name and nothing that is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from served_runs import Pages, write_run

from astraflow_contrib_pages import installation
from astraflow_core.errors import Refused


@pytest.fixture(autouse=True)
def forgotten() -> None:
    installation.why.cache_clear()
    installation.installed.cache_clear()


def test_a_name_is_explained_and_one_that_means_nothing_is_said(
    tmp_path: Path, serve: Callable[[Path], Pages]
) -> None:
    write_run(tmp_path, "one")
    pages = serve(tmp_path)
    (report,) = pages.ask("/ui/api/why?name=pages").json["reports"]
    assert report["state"] == "healthy" and report["distribution"] == "astraflow-contrib-pages"
    unknown = pages.ask("/ui/api/why?name=nosuch")
    assert unknown.status == 404 and "no plugin or component 'nosuch'" in unknown.json["error"]
    assert pages.ask("/ui/api/why?name=pages", scope=None).status == 401


@pytest.mark.parametrize(
    "name", ["", "-h", "os:system", "trainer/mine:run", "a/b/c", "a b", "../x", "a\n", "x" * 101]
)
def test_other_names_start_no_process(
    name: str, tmp_path: Path, serve: Callable[[Path], Pages], monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", started)
    assert serve(tmp_path).ask(f"/ui/api/why?name={quote(name)}").status == 400


def test_all_plugins_are_listed_and_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    plugin = {
        "name": "mine", "distribution": "d", "version": "1", "state": "broken", "problem": "no \x1b[2J", "file": "f",
        "components": [{"kind": "trainer", "name": "t", "target": "m:T"}],
    }  # fmt: skip

    def run(command: list[str], **how: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, json.dumps([plugin]), "")

    monkeypatch.setattr(subprocess, "run", run)
    (found,) = installation.installed()
    assert installation.installed() == [found] and len(asked) == 1
    assert asked[0][:3] == [sys.executable, "-P", "-m"]
    assert found == {
        "name": "mine", "distribution": "d", "version": "1", "state": "broken", "problem": "no \\u001b[2J",
        "components": ["trainer/t"],
    }  # fmt: skip


def test_a_command_that_hangs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **how: object) -> None:
        raise subprocess.TimeoutExpired(command, 15)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(Refused, match="did not answer") as refused:
        installation.why("mine")
    assert refused.value.status == 503
