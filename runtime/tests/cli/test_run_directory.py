"""Every command about a run finds it in the same way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from astraflow_core.config.models import RunTable
from astraflow_core.errors import UserError
from astraflow_runtime.cli import main
from astraflow_runtime.cli.run_directory import RUNS, find_run

OLD, NEW = "digits-20260101-000000", "digits-20260102-000000"
ABOUT_A_RUN = {
    "status": ["status"],
    "top": ["top"],
    "waits": ["waits"],
    "balance": ["balance"],
    "report": ["report"],
    "simulate": ["simulate"],
    "trace prompt": ["trace", "prompt", "p"],
    "trace group": ["trace", "group", "train-0"],
    "weights ls": ["weights", "ls"],
    "weights verify": ["weights", "verify", "1"],
    "weights diff": ["weights", "diff", "1", "2"],
    "weights pull": ["weights", "pull", "1", "folder"],
    "data-policy swap": ["data-policy", "swap", "solver", "replay", "{ use = 'replay' }"],
    "data-policy rollback": ["data-policy", "rollback", "solver", "replay"],
    "raas add": ["raas", "add"],
    "raas drain": ["raas", "drain", "raas-0"],
    "token": ["token", "--role", "viewer", "--name", "ada"],
    "token revoke": ["token", "revoke", "--role", "viewer", "--name", "ada"],
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs; the newer one has ended."""
    monkeypatch.chdir(tmp_path)
    for variable in ("ASTRAFLOW_TOKEN", "ASTRAFLOW_DATAFLOW"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / RUNS
    for age, name in enumerate((NEW, OLD)):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.toml").touch()
        os.utime(folder / name / "config.toml", (1000 - age, 1000 - age))
    (folder / NEW / "summary.json").write_text("{}")
    (folder / "no-run").mkdir()
    return folder


def test_names_are_those_in_the_default_directory() -> None:
    assert RunTable.model_fields["directory"].default == RUNS


def test_a_path_or_a_name(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in (OLD, f"runs/{OLD}", f"runs/{OLD}/", str(runs / OLD)):
        assert find_run(given).resolve() == runs / OLD
    assert capsys.readouterr().err == ""


def test_the_newest_run_is_chosen_and_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert find_run(None).name == NEW
    assert capsys.readouterr().err == f"run runs/{NEW}\n"
    assert find_run(None, live=True).name == OLD
    (runs / OLD / "summary.json").touch()
    assert find_run(None, live=True).name == NEW
    (runs / OLD / "dataflow.json").touch()  # it continues, having been resumed
    assert find_run(None).name == OLD


@pytest.mark.parametrize("command", ABOUT_A_RUN)
def test_a_wrong_name_has_one_answer(
    runs: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([*ABOUT_A_RUN[command], "--run", "digits-20260101-00000"]) == 2
    said = (
        "no run 'digits-20260101-00000': it is neither a run directory nor the name of one in runs/"
    )
    assert capsys.readouterr().err == f"astraflow: {said}; did you mean '{OLD}' or '{NEW}'?\n"


def test_resume_takes_the_same(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--resume", "nothing-like-it"]) == 2
    assert f"; the newest there: {NEW}, {OLD}\n" in capsys.readouterr().err
    assert main(["run", "--resume"]) == 2
    assert capsys.readouterr().err.startswith(f"run runs/{NEW}\nastraflow: ")


def test_no_run_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"which run\? there is none in runs/ here; give --run RUN"):
        find_run(None)
    assert main(["run", "--resume"]) == 2
    told = capsys.readouterr().err
    assert "give --resume RUN, the path of a run directory" in told and "`ls -d FOLDER" in told
    with pytest.raises(UserError, match="nor the name of one in runs/, which has none"):
        find_run("x")


def test_no_command_about_a_run_is_forgotten(runs: Path) -> None:
    from astraflow_core.catalog import Catalog
    from astraflow_runtime.cli import parser
    from astraflow_runtime.cli.helping import every_command

    with_run = {
        path
        for path, each in every_command(parser(Catalog.discover().plugins))
        if any("--run" in action.option_strings for action in each._actions)
    }
    assert with_run == set(ABOUT_A_RUN)
