"""Whole runs with fake services as real processes."""

from __future__ import annotations

import json
import signal
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from launch_support import (
    Command,
    Table,
    behaving,
    gone_within,
    run_here,
    running,
    save_checkpoints,
)

from astraflow_core.errors import RunFailed, UserError
from astraflow_runtime import run
from astraflow_runtime.launch.planning.prepare import prepare
from astraflow_runtime.launch.watch import supervise
from astraflow_runtime.launch.watch.winding_down import FINISH_DEADLINE_S

pytestmark = pytest.mark.timeout(120)
Start = Callable[..., Command]


def test_a_run_to_its_end(table: Table) -> None:
    ended, output = run_here(table)
    assert ended.error is None
    assert ended.exit_code == 0
    summary = json.loads((ended.directory / "summary.json").read_text())
    assert summary == ended.summary
    expected = {
        "name": "fake",
        "seed": 0,
        "state": "finished",
        "exit_code": 0,
        "steps": 20,
        "versions": 20,
        "reward_first": pytest.approx((1 + 2 + 3 + 4 + 5) / 5 / 20),
        "reward_last": pytest.approx((16 + 17 + 18 + 19 + 20) / 5 / 20),
        "eval_first": 0.125,
        "eval_last": 0.875,
        "tokens_generated": 2000,
        "tokens_trained": 1600,
        "max_staleness_seen": 1,
        "max_staleness_allowed": 2,
        "admitted": 9,
        "accepted": 5,
        "rejected": 2,
        "failed": 1,
        "lost": 0,
        "duplicated": 0,
        "trainer_wait_fraction": 0.25,
        "processes": 4,
        "restarts": 0,
    }
    assert {key: summary[key] for key in expected} == expected
    assert 0 < summary["setup_s"] <= summary["wall_s"]
    assert summary["cpu_s"] >= sum(process["cpu_s"] for process in summary["process_details"]) > 0
    assert summary["policies"]["solver"]["rows_trained"] == 160
    assert len(ended.metrics.lines) == 20

    lines = output.splitlines()
    assert lines[0] == "run fake: 20 steps, seed 0"
    assert any("held-out accuracy of version solver 9: held_out 0.875" in line for line in lines)
    assert any(line.startswith("step 20/20 | solver: reward 1.000") for line in lines)
    assert "\x1b" not in output


def test_the_run_directory(table: Table) -> None:
    ended, _ = run_here(table)
    token = (ended.directory / "token").read_text()
    assert stat.S_IMODE((ended.directory / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE(ended.directory.stat().st_mode) == 0o700
    assert len(token) > 30
    plugins = json.loads((ended.directory / "plugins.json").read_text())
    unpackaged = [entry for entry in plugins if not entry["packaged"]]
    assert any("workflow" in entry["components"] for entry in unpackaged)
    from astraflow_runtime.config.loading import load_config

    again = load_config(ended.directory / "config.toml").config
    assert again.run.steps == 20
    assert Path(again.policies["solver"].model).is_dir()
    for log in (ended.directory / "logs").iterdir():
        assert token not in log.read_text()
    assert prepare(table).directory != prepare(table).directory


def test_a_trainer_that_fails(table: Table) -> None:
    ended, _ = run_here(behaving(table, rate=1, trainer_solver="exit1"))
    assert ended.exit_code == 1
    assert ended.summary["state"] == "failed"
    message = str(ended.error)
    assert "trainer-solver ended with exit code 1" in message
    assert "trainer-solver does not like this" in message


def test_a_service_that_blames_the_user(table: Table) -> None:
    ended, _ = run_here(behaving(table, rate=1, raas_0="exit2"))
    assert ended.exit_code == 2
    assert isinstance(ended.error, UserError)
    assert str(ended.error) == "raas-0: raas-0 does not like this"


def test_a_port_in_use(table: Table) -> None:
    ended, _ = run_here(behaving(table, dataflow="port"))
    assert ended.exit_code == 2
    assert "Address already in use" in str(ended.error)


def test_a_dataflow_that_gives_up(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "BLAME_S", 0.3)
    ended, _ = run_here(behaving(table, dataflow="fail"))
    assert ended.exit_code == 1
    assert str(ended.error) == "8 tasks failed in a row: reward 'r' raised ValueError"


def test_a_killed_raas_is_replaced(table: Table) -> None:
    ended, output = run_here(behaving(table, dataflow="hold:raas-1.back", raas_1="die_once"))
    assert ended.exit_code == 0
    assert ended.summary["restarts"] == 1
    assert "raas-1 was killed by SIGKILL and is restarted (restart 1 of 3)" in output


def test_a_killed_trainer_is_replaced_if_it_has_checkpoints(table: Table) -> None:
    save_checkpoints(table)
    held = behaving(table, dataflow="hold:trainer-solver.back", trainer_solver="die_once")
    ended, output = run_here(held)
    assert ended.exit_code == 0
    assert ended.summary["restarts"] == 1
    assert "trainer-solver was killed by SIGKILL and is restarted (restart 1 of 3)" in output


def test_a_killed_trainer_without_checkpoints_fails_the_run(table: Table) -> None:
    ended, _ = run_here(behaving(table, rate=1, trainer_solver="die"))
    assert ended.exit_code == 1
    assert ended.summary["restarts"] == 0
    assert "trainer-solver was killed by SIGKILL while the run continued" in str(ended.error)


def test_a_trainer_that_keeps_dying_is_given_up(table: Table) -> None:
    save_checkpoints(table)
    ended, _ = run_here(behaving(table, rate=1, restarts=2, trainer_solver="die"))
    assert ended.exit_code == 1
    assert ended.summary["restarts"] == 2
    assert "trainer-solver was killed by SIGKILL while the run continued" in str(ended.error)


def test_why_a_run_failed_is_known_from_a_dataflow_that_left_meanwhile(table: Table) -> None:
    ended, _ = run_here(behaving(table, rate=1, dataflow="leave", trainer_solver="exit1"))
    assert ended.exit_code == 1
    assert "the trainer of 'solver' failed: the loss is nan" in str(ended.error)


def test_a_run_continues_with_the_raas_that_are_left(table: Table) -> None:
    ended, output = run_here(behaving(table, restarts=0, dataflow="outlive:raas-1", raas_1="exit1"))
    assert ended.exit_code == 0
    assert "raas-1 ended with exit code 1 and is not restarted" in output


def test_a_raas_that_is_not_taken_in_is_not_started_again(table: Table) -> None:
    ended, output = run_here(behaving(table, dataflow="outlive:raas-1", raas_1="exit3"))
    assert ended.exit_code == 0 and ended.summary["restarts"] == 0
    assert "raas-1 was refused and is not restarted: raas-1 does not like this" in output


def test_a_run_continues_with_another_users_raas_that_has_the_name(table: Table) -> None:
    table["raas"] = {"replicas": 1}
    ended, _ = run_here(behaving(table, dataflow="outlive:raas-0", raas_0="exit3"))
    assert ended.exit_code == 0, ended.error


def test_no_raas_is_left(table: Table) -> None:
    ended, _ = run_here(behaving(table, rate=1, restarts=1, raas_0="exit1", raas_1="exit1"))
    assert ended.exit_code == 1
    assert "no RaaS is left; raas-1 ended with exit code 1 as the last: " in str(ended.error)


def test_a_run_that_stands_still(table: Table) -> None:
    changed = behaving(table, dataflow="stand_still")
    changed["run"] |= {"deadline_s": 0.5, "start_deadline_s": 5}
    ended, _ = run_here(changed)
    assert ended.exit_code == 1
    assert "no progress for" in str(ended.error)
    assert "trainer solver waits 1 s for rollouts: 4 more sequences" in str(ended.error)


def test_a_run_that_gets_on_again_is_not_given_up_at_once(table: Table) -> None:
    # It is named after 2 s and given up after 4: a second for a busy machine on either side.
    changed = behaving(table, dataflow="stand_still:3")
    changed["run"] |= {"deadline_s": 2, "start_deadline_s": 0.8}
    ended, output = run_here(changed)
    assert ended.exit_code == 0
    assert output.count("no progress for") == 1


def test_warnings_of_processes_are_reported_once(table: Table) -> None:
    _, output = run_here(behaving(table, dataflow="hold:raas-0.did", raas_0="warn"))
    assert output.count("raas-0: low on memory free_mb=3") == 1


def test_what_a_process_leaves_behind_is_ended(table: Table) -> None:
    ended, _ = run_here(behaving(table, dataflow="hold:raas-0.child", raas_0="child"))
    assert (ended.directory / "raas-0.child").exists()
    assert ended.exit_code == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompts": {"use": "launch_fakes:Prompts", "count": 0}}, "has no prompts"),
        ({"prompts": {"use": "launch_fakes:Prompts", "broken": True}}, "first prompt .* KeyError"),
        (
            {"eval": {"sets": {"held": {"use": "launch_fakes:Prompts", "count": 0}}}},
            r"eval\.sets\.held: .*no prompts",
        ),
        ({"reward": {"use": "launch_fakes:BrokenReward"}}, "the unit tests file is lost"),
        ({"workflow": {"use": "no_such_workflow"}}, "no_such_workflow"),
        (
            {"reward": {"use": "builtins:print"}},
            r"'builtins:print' must return .* score\(view\).* NoneType",
        ),
        (
            {"prompts": {"use": "builtins:print"}},
            "prompts: what 'builtins:print' makes has no __len__ and no __getitem__: it is of type NoneType",
        ),
    ],
)
def test_mistakes_are_refused_before_anything_starts(
    table: Table, change: dict[str, Any], said: str
) -> None:
    table.update(change)
    with pytest.raises(UserError, match=said):
        prepare(table)
    assert not Path(table["run"]["directory"]).exists()


def test_a_directory_that_cannot_be_written(table: Table, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    table["run"]["directory"] = str(tmp_path / "file")
    with pytest.raises(UserError, match=r"run\.directory"):
        prepare(table)


def test_a_missing_interpreter_is_named(table: Table) -> None:
    table["policies"]["solver"]["engine"]["python"] = "/nowhere/bin/python"
    with pytest.raises(UserError, match=r"policies\.solver\.engine\.python.*/nowhere/bin/python"):
        prepare(table)


def test_the_python_api(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    del table["workflow"]
    offset = 3

    async def episode(engines: Any, prompt: Any) -> None:
        return None

    def score(view: Any) -> float:
        return float(offset)

    with ThreadPoolExecutor(1) as notebook:  # off the main thread no signal handler may be set
        given = {"workflow": episode, "reward": score}
        result = notebook.submit(run, table, **given, overrides=["run.seed=5"]).result()
    assert result.summary["seed"] == 5
    assert result.exit_code == 0
    assert len(result.metrics) == 20
    import cloudpickle

    file = result.directory / "user_objects.pkl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    objects = cloudpickle.loads(file.read_bytes())
    assert objects["reward"](None) == 3.0
    assert set(objects) == {"workflow", "reward"}
    assert "run fake" in capsys.readouterr().out


def test_the_python_api_raises(table: Table) -> None:
    lock = threading.Lock()
    with pytest.raises(RunFailed, match="trainer-solver ended with exit code 1"):
        run(behaving(table, rate=1, trainer_solver="exit1"))
    with pytest.raises(UserError, match="cannot be sent to other processes"):
        run(table, reward=lambda view: float(lock.locked()))


@pytest.mark.slow
def test_ctrl_c_once_finishes_cleanly(table: Table, command: Start) -> None:
    started = command(behaving(table, rate=2))
    directory = started.wait_for("raas-1.pid", "trainer-solver.pid", "fake_state")
    started.signal(signal.SIGINT)
    code, out, err = started.end()
    assert (code, err) == (130, "")
    assert (directory / "checkpoint").read_text() == "saved"
    summary = json.loads((directory / "summary.json").read_text())
    assert (summary["state"], summary["exit_code"]) == ("stopped", 130)
    assert "Traceback" not in out
    assert running(directory) == []


@pytest.mark.slow
def test_ctrl_c_twice_ends_at_once(table: Table, command: Start) -> None:
    deaf = behaving(table, rate=1, dataflow="ignore_stop", raas_0="deaf", trainer_solver="deaf")
    started = command(deaf)
    directory = started.wait_for("raas-0.pid", "trainer-solver.pid", "fake_state")
    started.signal(signal.SIGINT)
    started.wait_for("stop_asked")
    began = time.monotonic()
    started.signal(signal.SIGINT)
    code, out, err = started.end()
    assert code == 130
    assert time.monotonic() - began < FINISH_DEADLINE_S
    assert json.loads((directory / "summary.json").read_text())["state"] == "killed"
    assert "Traceback" not in out + err
    assert running(directory) == []


@pytest.mark.slow
def test_sigterm_is_like_ctrl_c(table: Table, command: Start) -> None:
    started = command(behaving(table, rate=2), "json")
    directory = started.wait_for("raas-1.pid", "trainer-solver.pid", "fake_state")
    started.signal(signal.SIGTERM)
    code, out, _ = started.end()
    assert code == 143
    assert json.loads(out)["state"] == "stopped"
    assert (directory / "checkpoint").exists()


@pytest.mark.slow
def test_a_killed_launcher_takes_its_processes_along(table: Table, command: Start) -> None:
    started = command(behaving(table, rate=1, raas_0="deaf"))
    directory = started.wait_for("raas-0.pid", "raas-1.pid", "trainer-solver.pid")
    assert len(running(directory)) == 4
    started.signal(signal.SIGKILL)
    assert gone_within(directory, 20)


@pytest.mark.slow
def test_a_mistake_on_the_command_line(table: Table, command: Start) -> None:
    table["run"]["stepz"] = 3
    code, out, err = command(table).end()
    assert code == 2
    assert "stepz" in err
    assert "Traceback" not in err
    assert out == ""
