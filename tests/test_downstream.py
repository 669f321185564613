"""``make downstream``: the list of third-party plugins, and the message about one that fails."""

from __future__ import annotations

import re
from email.message import Message
from pathlib import Path
from typing import Any

import dev
import downstream
import pytest
from downstream import Downstream

from astraflow_contrib_plugin.checking.programs import EndedProgram
from astraflow_contrib_plugin.checking.target import CheckedTarget


def test_the_plugins_of_this_repository_are_listed() -> None:
    listed = {plugin.path for plugin in downstream.read(downstream.LIST)}
    assert {file.parent for file in dev.ROOT.glob("examples/plugins/*/pyproject.toml")} <= listed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "lists no"),
        ("[[plugin]]\n", "plugin 1: expected path"),
        ('[[plugin]]\npath = "a"\nrequirement = "b"', "plugin 1: expected path"),
        ('[[plugin]]\npath = "a"\n[[plugin]]\nrequirement = "no name"', "plugin 2: "),
        ("[[plugin", "list.toml: "),
    ],
)
def test_a_wrong_list_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "list.toml"
    file.write_text(text)
    with pytest.raises(dev.Failure, match=says):
        downstream.read(file)


class Installed(Message):
    """Metadata of a distribution."""

    requires = (
        "astraflow-core>=0.1",
        "numpy",
        "not-here>=2; python_version > '3'",
        "not-there; python_version < '3'",
        "for-tests; extra == 'test'",
        "for-gpus; extra == 'runtime'",
    )


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The programs that are called; the tests of a plugin fail."""
    called: list[tuple[str, ...]] = []

    def run(module: str, arguments: Any, *rest: Any) -> EndedProgram:
        called.append((module, *arguments))
        return EndedProgram(1, ["E  assert 1 == 2"]) if module == "pytest" else EndedProgram(0, [])

    monkeypatch.setattr(downstream, "run_module", run)
    return called


def test_what_it_lacks_is_installed_beside_it_and_failures_are_shown(
    programs: list[tuple[str, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "tests").mkdir()
    target = CheckedTarget("theirs", "1.0", Installed(), tmp_path / "site", tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(downstream, "resolve", lambda *told: target)
    file = tmp_path / "list.toml"
    file.write_text('[[plugin]]\npath = "theirs"\n')
    assert downstream.main([str(file)]) == 1
    told = capsys.readouterr()
    assert re.search(rf"failed {tmp_path / 'theirs'}, \d+ s\n  E  assert 1 == 2", told.out)
    assert told.err == f"failed: {tmp_path / 'theirs'}\n"
    pip, pytest_ = programs
    assert pip[-2:] == ("not-here>=2", "for-tests")
    assert pytest_[-1] == str(tmp_path / "tests")


def test_a_folder_that_is_no_plugin_is_named(tmp_path: Path) -> None:
    (said,) = downstream.problems(Downstream(path=tmp_path), tmp_path, 10)
    assert "pyproject.toml does not exist" in said
