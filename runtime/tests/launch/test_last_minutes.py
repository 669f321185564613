"""Processes that are killed where a run begins or ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from launch_support import Command, Table, behaving, run_here, running, save_checkpoints

from astraflow_runtime.launch.planning.leftovers import clear_leftovers
from astraflow_wire.host.private_folder import PrivateFolder

pytestmark = pytest.mark.timeout(120)
Start = Callable[..., Command]


def test_a_dataflow_that_is_killed_before_it_listens_is_started_again(table: Table) -> None:
    ended, output = run_here(behaving(table, dataflow="die_early"))
    assert ended.exit_code == 0
    assert (
        "dataflow was killed by SIGKILL before it started listening and is restarted (restart 1 of 3)"
    ) in output


def test_a_dataflow_that_is_killed_before_it_listens_again_and_again(table: Table) -> None:
    ended, _ = run_here(behaving(table, restarts=0, dataflow="die_early"))
    assert ended.exit_code == 1
    assert "dataflow was killed by SIGKILL before it started listening" in str(ended.error)


def test_a_dataflow_that_dies_while_trainers_save_is_started_anew(table: Table) -> None:
    ended, output = run_here(
        behaving(table, dataflow="die_at_end", trainer_solver="save_after:dataflow.back")
    )
    assert ended.exit_code == 0
    assert ended.summary["state"] == "finished"
    assert (
        "dataflow was killed by SIGKILL after the end of the run, while trainers save, and is restarted"
    ) in output


def test_trainers_save_without_a_dataflow_that_cannot_continue(table: Table) -> None:
    table["journal"] = {"enabled": False}
    ended, output = run_here(
        behaving(table, dataflow="die_at_end", trainer_solver="outlive:dataflow")
    )
    assert ended.exit_code == 0
    assert ended.summary["state"] == "finished"
    assert (ended.directory / "checkpoint").read_text() == "saved"
    said = "dataflow was killed by SIGKILL after the end of the run, while trainers save; they can continue without it"
    assert output.count(said) == 1


def test_a_trainer_that_is_killed_while_it_saves_is_started_anew(table: Table) -> None:
    save_checkpoints(table)
    ended, output = run_here(behaving(table, trainer_solver="die_saving"))
    assert ended.exit_code == 0
    assert (ended.directory / "checkpoint").read_text() == "saved"
    assert (
        "trainer-solver was killed by SIGKILL while it saved its model and is restarted" in output
    )


def test_what_a_trainer_that_is_killed_while_it_saves_has_lost_is_named(table: Table) -> None:
    ended, _ = run_here(behaving(table, trainer_solver="die_saving"))
    assert ended.exit_code == 1
    message = str(ended.error)
    assert "trainer-solver was killed by SIGKILL before its model was saved" in message
    assert "All its updates are lost. Set [checkpoint] every" in message


def interrupted(started: Command) -> tuple[Path, tuple[int, str, str]]:
    """Ctrl-C once all processes have registered: the run directory, and how the run ended."""
    directory = started.wait_for("raas-1.pid", "trainer-solver.pid", "fake_state")
    started.signal(signal.SIGINT)
    return directory, started.end()


@pytest.mark.slow
def test_requests_to_a_dataflow_that_dies_of_ctrl_c_are_retried(
    table: Table, command: Start
) -> None:
    started = command(behaving(table, rate=1, dataflow="die_at_stop"))
    directory, (code, out, err) = interrupted(started)
    assert (code, err) == (130, "")
    assert "dataflow was killed by SIGKILL and is restarted (restart 1 of 3)" in out
    assert (directory / "checkpoint").read_text() == "saved"
    assert json.loads((directory / "summary.json").read_text())["state"] == "stopped"
    assert running(directory) == []


@pytest.mark.slow
def test_trainers_save_at_ctrl_c_though_the_dataflow_is_gone(table: Table, command: Start) -> None:
    table["journal"] = {"enabled": False}
    started = command(behaving(table, rate=1, dataflow="die_at_stop"))
    directory, (code, out, err) = interrupted(started)
    assert (code, err) == (130, "")
    assert "dataflow was killed by SIGKILL and is not restarted; trainers save and exit" in out
    assert (directory / "checkpoint").read_text() == "saved"


@pytest.mark.slow
def test_trainers_save_at_ctrl_c_though_the_dataflow_hangs(table: Table, command: Start) -> None:
    table["run"]["deadline_s"] = 0.6
    started = command(behaving(table, rate=1, dataflow="hang_at_stop"))
    directory, (code, out, err) = interrupted(started)
    assert (code, err) == (130, "")
    assert out.count("the stop request to the dataflow failed") == 1
    assert "trainers save and exit without it" in out
    assert (directory / "checkpoint").read_text() == "saved"
    assert running(directory) == []


def test_what_was_half_done_is_removed(tmp_path: Path) -> None:
    half = [
        tmp_path / "models" / ".solver.partial",
        tmp_path / "checkpoints" / "solver" / ".update-00000004.partial",
        tmp_path / "state" / "raas-0" / "transport-solver" / "received-x",
    ]
    whole = [
        tmp_path / "models" / "solver",
        tmp_path / "checkpoints" / "solver" / "update-00000003",
    ]
    for folder in [*half, *whole]:
        folder.mkdir(parents=True)
        (folder / "lock").write_text("of a process that is lost")
    held = PrivateFolder(half[-1].parent, "received-")
    clear_leftovers(tmp_path)
    assert [folder for folder in half if folder.exists()] == []
    assert all(folder.exists() for folder in [*whole, held.path])
    held.close()
