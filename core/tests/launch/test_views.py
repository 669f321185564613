"""What a person reads of a run."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from launch_support import Table, parsed

from astraflow_core.errors import UserError
from astraflow_core.launch import figures
from astraflow_core.launch.live import LiveView, sparkline
from astraflow_core.launch.metrics import read_metrics
from astraflow_core.launch.plain import PlainView
from astraflow_core.launch.report import report_command
from astraflow_core.launch.status import Status, parse_status
from astraflow_core.launch.summary import summarise
from astraflow_core.launch.view import make_view
from astraflow_core.protocols.launcher import ProcessState


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def status_of(updates: int, **changes: Any) -> Status:
    policy = {
        "version": updates,
        "updates": updates,
        "buffered": 7,
        "in_flight": 16.0,
        "reward": updates / 10,
        "metrics": {"loss": 0.25, "grad_norm": 1.5},
        "staleness": {"0": 10, "1": 20, "2": 10},
        "max_staleness_seen": 2,
        "trainer_wait_fraction": 0.4,
    }
    wait = {
        "who": "trainer solver",
        "for_whom": "rollouts",
        "what": "5 more",
        "since_s": 2.0,
        "until_s": 1.0,
    }
    answer = {
        "state": "running",
        "eta_s": 75.0,
        "policies": {"solver": policy},
        "raas": [{"name": "raas-0", "state": "suspect", "serving": {"solver": 3}, "running": 4}],
        "eval": {"history": [{"versions": {"solver": 0}, "sets": {"held": {"avg": 0.5, "n": 4}}}]},
        "samples": [{"texts": ["three is\n[4]"], "rewards": [0.5]}],
        "something_new": 1,
        **changes,
    }
    return parse_status(answer, [wait])


def test_the_live_view_shows_what_matters(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    view = make_view(parsed(table), None, stream)
    assert isinstance(view, LiveView)
    processes = [
        ProcessState("dataflow", 1, None),
        ProcessState("raas-0", 2, None, restarts=2),
        ProcessState("trainer-solver", 3, None, stopped=True),
    ]
    view.show(status_of(8), processes)
    view.say("raas-0 [died]")
    view.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    for part in (
        "step 8/20",
        "1 min 15 s left",
        "0.800",
        "0.500",
        "0.2500",
        "1.0 max 2",
        "stale ≤2",
        "40%",
        "7 buffered + 16 under way",
        "trainer solver waits 2 s for rollouts: 5 more",
        "says: three is [4] → reward 0.50",
        "raas-0 serves 3, 4 running suspect (2 restarts)",
        "trainer-solver stopped",
        "raas-0 [died]",
    ):
        assert part in shown, part


def test_plain_lines_are_few(table: Table) -> None:
    stream = io.StringIO()
    view = make_view(parsed(table), None, stream)
    assert isinstance(view, PlainView)
    for updates in range(1, 20):
        view.show(status_of(updates), [])
    view.show(status_of(20, state="finished", reason="all updates are made"), [])
    lines = stream.getvalue().splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("step")] == [
        "step 1/20",
        "step 20/20",
    ]
    assert lines.count("held-out accuracy of version solver 0: held 0.500") == 1
    assert "run is finished: all updates are made" in lines


def test_a_run_that_goes_on_does_not_tell_all_its_evaluations_again(table: Table) -> None:
    stream = io.StringIO()
    view = make_view(parsed(table), False, stream)

    def told(versions: int) -> list[str]:
        sets = {"held": {"avg": 0.5, "n": 4}}
        history = [{"versions": {"solver": n}, "sets": sets} for n in range(versions)]
        view.show(status_of(5, eval={"history": history}), [])
        lines = stream.getvalue().splitlines()
        return [line.split()[5] for line in lines if line.startswith("held-out accuracy")]

    assert told(3) == ["2:"]
    assert told(5) == ["2:", "3:", "4:"]


def test_live_can_be_declined(table: Table) -> None:
    assert isinstance(make_view(parsed(table), False, Terminal()), PlainView)


def test_a_sparkline_spans_its_values() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(41.6, "42 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text


def test_counts() -> None:
    assert [figures.count(n) for n in (999, 9999, 12345, 4.5e6)] == ["999", "9999", "12.3k", "4.5M"]


def test_rates_are_those_of_the_last_seconds() -> None:
    rates = figures.Rates()
    for second in range(100):
        rates.update(float(second), 1000 * max(0, second - 50), 10 * second)
    assert rates.generated == pytest.approx(1000)
    assert rates.trained == pytest.approx(10)


def test_rates_are_never_negative() -> None:
    rates = figures.Rates()
    for second, trained in enumerate([400, 500, 100, 150]):
        rates.update(float(second), 1000, trained)
        assert rates.trained >= 0
    assert rates.trained == pytest.approx(50)


def two_policies(table: Table) -> Table:
    table["policies"]["verifier"] = table["policies"]["solver"]
    return table


def test_a_summary_over_two_policies(table: Table, tmp_path: Path) -> None:
    lines = [
        {
            "time": 100.0 + step,
            "policy": policy,
            "step": step,
            "reward": step * scale,
            "metrics": {},
        }
        for step in range(1, 9)
        for policy, scale in (("solver", 0.1), ("verifier", -1.0))
    ]
    sets = {"held": {"avg": 0.5, "policies": {"solver": {"avg": 0.75}, "verifier": {"avg": 0.25}}}}
    lines.append({"time": 200.0, "eval": {"versions": {"solver": 2, "verifier": 3}, "sets": sets}})
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"cut'
    )
    metrics = read_metrics(tmp_path)
    policies = {
        "solver": {
            "version": 8,
            "updates": 8,
            "max_staleness_seen": 1,
            "trainer_wait_fraction": 0.5,
        },
        "verifier": {
            "version": 4,
            "updates": 8,
            "max_staleness_seen": 2,
            "trainer_wait_fraction": 0.1,
        },
    }
    status = parse_status(
        {
            "policies": policies,
            "eval": {"history": [lines[-1]["eval"]]},
            "tasks": {"duplicates": 3},
        },
        [],
    )
    summary = summarise(parsed(two_policies(table)), status, metrics.steps, [])
    assert summary["reward_first"] == pytest.approx(0.3)
    assert summary["policies"]["verifier"]["reward_last"] == pytest.approx(-6.0)
    assert summary["versions"] == 12
    assert summary["steps"] == 8
    assert summary["max_staleness_seen"] == 2
    assert summary["trainer_wait_fraction"] == pytest.approx(0.3)
    assert summary["duplicated"] == 3
    assert summary["eval_last"] == 0.5
    assert summary["policies"]["verifier"]["eval_last"] == 0.25


def test_a_broken_line_inside_the_metrics_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"time": 1}\n{"time"\n{"time": 2}\n')
    with pytest.raises(UserError, match="line 2"):
        read_metrics(tmp_path)


def test_a_report(table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {
            "time": float(step),
            "policy": "solver",
            "step": step,
            "reward": step / 10,
            "max_staleness_seen": 1,
        }
        for step in range(1, 11)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = read_metrics(tmp_path).steps
    summary = {
        "name": "fake",
        "seed": 0,
        "state": "failed",
        "exit_code": 1,
        "error": "the [reward] raised\nmore",
        "wall_s": 70.0,
        "cpu_s": 90.0,
        "setup_s": 5.0,
        **summarise(parsed(table), status_of(10), steps, []),
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert report_command(tmp_path) == 0
    out = capsys.readouterr().out
    for part in (
        "fake: failed after 10 of 20 steps",
        "the [reward] raised",
        "0.300 → 0.800",
        "1 min 10 s, the first 5 s to start; 90 CPU seconds",
        "curves.png",
    ):
        assert part in out, part
    picture = (tmp_path / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
    assert report_command(tmp_path, json_output=True) == 0
    assert json.loads(capsys.readouterr().out) == summary


def test_a_report_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"summary\.json"):
        report_command(tmp_path)
