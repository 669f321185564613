"""What a person reads of a run."""

from __future__ import annotations

import io
import json
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from launch_support import SAMPLED, Table, parsed, status_of
from msgspec.structs import replace

from astraflow_core.protocols.launcher import ProcessState
from astraflow_runtime.launch.planning import header
from astraflow_runtime.launch.results.metrics import left_out, read_metrics, rewards_of
from astraflow_runtime.launch.results.report import report_command, summary_rows
from astraflow_runtime.launch.results.summary import summarise
from astraflow_runtime.launch.view import formatting
from astraflow_runtime.launch.view.live import LiveView
from astraflow_runtime.launch.view.picture import sparkline
from astraflow_runtime.launch.view.plain import PlainView
from astraflow_runtime.launch.view.status import parse_status
from astraflow_runtime.launch.view.views import make_view
from astraflow_wire.status import EvaluationResult, EvaluationStatus, SetResult, Status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def undrawn() -> None:
    """Curves are drawn here."""


def test_the_live_view_shows_what_matters(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
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
        "7 buffered + 16 in flight",
        "trainer solver waits 2 s for rollouts: 5 more",
        "asked: what is three?",
        "says: three is [4] → reward 0.50",
        '4 of 10 groups rejected: "all rewards equal" (3), …',
        f"sampled: {SAMPLED}",
        "episodes: calls 1.500 (6 of 8), m0 0.000",
        "raas-0 serves 3, 4 running suspect (2 restarts)",
        "trainer-solver stopped",
        "raas-0 [died]",
    ):
        assert part in shown, part


def test_the_first_lines_say_how_to_open_the_pages(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr("importlib.metadata.distribution", asked.append)
    here, elsewhere = Path("runs/one"), tmp_path / "my runs" / "one"
    config = parsed(table)
    assert header.how_to_see(config, here) == "astraflow ui"
    assert header.how_to_see(config, elsewhere) == f"astraflow ui '{tmp_path}/my runs'"
    served = parsed({**table, "plugins": {"enable": ["pages"]}})
    assert header.how_to_see(served, elsewhere) == f"astraflow ui --of '{elsewhere}'"
    assert set(asked) == {"astraflow-contrib-pages"}

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", missing)
    assert header.how_to_see(config, here) == ""


def test_plain_lines_are_few(table: Table) -> None:
    stream = io.StringIO()
    view = make_view(parsed(table), None, stream)
    assert isinstance(view, PlainView)
    for updates in range(1, 20):
        view.show(status_of(updates), [])
    view.show(status_of(20, state="finished", reason="all updates are done"), [])
    lines = stream.getvalue().splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("step")] == [
        "step 1/20",
        "step 20/20",
    ]
    assert lines.count("held-out accuracy of version solver 0: held 0.500") == 1
    assert "run is finished: all updates are done" in lines
    assert (
        f"sampled {SAMPLED}; calls 1.500 (6 of 8), m0 0.000, m1 1.000, m2 2.000, … |" in lines[-1]
    )


def test_failed_prompts_of_evaluations_are_reported(table: Table) -> None:
    def evaluated(version: int, n: int, failed: int, error: str = "") -> EvaluationResult:
        held = SetResult(avg=0.5 if n else None, n=n, k=1, failed=failed, last_error=error)
        return EvaluationResult(version=version, versions={"solver": version}, sets={"held": held})

    history = [
        evaluated(0, 8, 0),
        evaluated(4, 6, 2, "reward 'r' raised"),
        evaluated(8, 0, 8, "x\ny"),
    ]
    status = replace(status_of(8), eval=EvaluationStatus(history=history))
    stream = io.StringIO()
    view = PlainView(parsed(table), stream)
    view.show(replace(status, eval=EvaluationStatus(history=history[:1])), [])
    view.show(status, [])
    told = [line for line in stream.getvalue().splitlines() if line.startswith("held-out")]
    assert told[0].endswith("version solver 0: held 0.500")
    assert told[1].endswith("held 0.500 (2 of 8 prompts failed: reward 'r' raised)")
    assert told[2].endswith("held – (8 of 8 prompts failed: x y)")
    summary = summarise(parsed(table), status, [], [])
    assert summary["eval_failed"] == 10
    assert [each["sets"]["held"]["failed"] for each in summary["evals"]] == [0, 2, 8]
    ended = {"error": None, "setup_s": None, "wall_s": 1, "cpu_s": 1, **summary}
    assert dict(summary_rows(ended))["evaluations"] == (
        "10 prompts failed and count in no accuracy; 'held' at last: 8 of 8, x y"
    )
    sound = replace(status, eval=EvaluationStatus(history=history[:1]))
    ended |= summarise(parsed(table), sound, [], [])
    assert "evaluations" not in dict(summary_rows(ended))


def test_a_reason_takes_one_line(table: Table) -> None:
    stream = io.StringIO()
    view = make_view(parsed(table), None, stream)
    view.show(status_of(3, state="stopping", reason="enough\nstep 20/20\nrun is finished"), [])
    lines = stream.getvalue().splitlines()
    assert "run is stopping: enough step 20/20 run is finished" in lines


def quiet_lines(table: Table, seconds: int, status: Status) -> list[str]:
    """What a view writes that is shown the same status each second."""
    stream, time = io.StringIO(), [100.0]
    view = PlainView(parsed(table), stream, clock=lambda: time[0])
    for second in range(seconds):
        time[0] = 100.0 + second
        view.show(status, [])
    return stream.getvalue().splitlines()


def test_a_run_without_steps_is_never_silent(table: Table) -> None:
    policy = {
        "groups_accepted": 4,
        "rejected": {"stale": 2, "all rewards equal": 960, "no trained token": 3},
    }
    lines = quiet_lines(table, 100, status_of(0, policies={"solver": policy}))
    told = [line for line in lines if line.startswith("step 0/20")]
    assert len(told) == 4  # the first at once, then every 30 s
    for line in told:
        assert (
            "solver: reward – loss – version 0 staleness ≤ 0/2 buffer 0 965 of 969 groups rejected: "
            '"all rewards equal" (960), "no trained token" (3), …'
        ) in line
    assert "trainer solver waits 2 s for rollouts: 5 more" in told[1]


def test_a_run_that_starts_is_not_silent_and_one_that_ended_is(table: Table) -> None:
    assert any("rejected" not in line for line in quiet_lines(table, 40, status_of(3)))
    starting = quiet_lines(table, 95, Status())
    assert len([line for line in starting if line.startswith("step 0/20")]) == 4
    ended = quiet_lines(table, 95, status_of(3, state="stopped"))
    assert len([line for line in ended if line.startswith("step")]) == 1


def test_a_resumed_run_does_not_report_all_its_evaluations_again(table: Table) -> None:
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


EVIL = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e"
SHOWN = r"\u001b]0;pwned\u0007\u001b[2J\u009b31m\u202e"


@pytest.mark.parametrize("live", [True, False])
def test_a_terminal_obeys_no_text_of_a_raas(
    table: Table, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    view = make_view(parsed(table), live, stream)
    raas = [{"name": "raas-0", "state": EVIL}, {"name": f"raas-{EVIL}"}]
    turns = [{"role": "assistant", "policy": "solver", "text": EVIL}]
    samples = [{"turns": turns, "rewards": [0.5]}]
    status = status_of(8, raas=raas, samples=samples, reason=EVIL, state="stopped")
    view.show(status, [ProcessState("raas-0", 1, None)])
    view.say(f"failed: {EVIL}")
    view.close()
    shown = stream.getvalue()
    for forbidden in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\x07"):
        assert forbidden not in shown
    assert f"failed: {SHOWN}" in shown
    assert shown.count(SHOWN) > 1
    assert status.raas[1].name == f"raas-{SHOWN}"


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
    assert formatting.duration(seconds) == text


def test_counts() -> None:
    assert [formatting.count(n) for n in (999, 9999, 12345, 4.5e6)] == [
        "999",
        "9999",
        "12.3k",
        "4.5M",
    ]


def test_rates_are_those_of_the_last_seconds() -> None:
    rates = formatting.Rates()
    for second in range(100):
        rates.update(float(second), 1000 * max(0, second - 50), 10 * second)
    assert rates.generated == pytest.approx(1000)
    assert rates.trained == pytest.approx(10)


def test_rates_are_never_negative() -> None:
    rates = formatting.Rates()
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
            "steps": 8,
            "policies": policies,
            "eval": {"history": [lines[-1]["eval"]]},
            "tasks": {"duplicates": 3},
        }
    )
    summary = summarise(parsed(two_policies(table)), status, metrics.steps, [])
    assert summary["reward_first"] == pytest.approx(0.25)
    assert summary["policies"]["verifier"]["reward_last"] == pytest.approx(-6.5)
    assert summary["versions"] == 12
    assert summary["steps"] == 8
    assert summary["max_staleness_seen"] == 2
    assert summary["trainer_wait_fraction"] == pytest.approx(0.3)
    assert summary["duplicated"] == 3
    assert summary["eval_last"] == 0.5
    assert summary["policies"]["verifier"]["eval_last"] == 0.25


GOOD = '{"time": 1, "policy": "solver", "step": %d, "again": %s, "reward": %f, "metrics": {"loss": 2.0}}\n'


def test_damaged_lines_are_skipped_and_reported(tmp_path: Path) -> None:
    bad = (
        b'{"time"\n',
        b"\xff\n",
        b"[]\n",
        b'{"policy": "solver", "step": 1}\n',
        b'{"time": 1, "policy": {}, "step": 1}\n',
        b'{"time": 1, "policy": "solver", "step": 1, "metrics": 3}\n',
        b'{"time": 1, "eval": 3}\n',
    )
    for line in bad:
        (tmp_path / "metrics.jsonl").write_bytes(
            line + (GOOD % (2, "false", 0.5)).encode() + b'{"ti'
        )
        metrics = read_metrics(tmp_path)
        assert ([step.step for step in metrics.steps], metrics.damaged) == ([2], (1,)), line
    said = left_out(metrics, tmp_path)
    assert said == f"{tmp_path / 'metrics.jsonl'} is damaged: line 1 is ignored"
    (tmp_path / "metrics.jsonl").write_bytes(b"[]\n" * 7)
    assert "line 1, 2, 3, 4, 5 and 2 more is" in left_out(read_metrics(tmp_path), tmp_path)


def test_a_step_that_was_repeated_counts_once(tmp_path: Path) -> None:
    """After a trainer went back to its checkpoint; the reward of its line is that of what was sampled later."""
    made = [(1, "false", 0.1), (2, "false", 0.2), (2, "true", 0.9), (3, "false", 0.3)]
    (tmp_path / "metrics.jsonl").write_text("".join(GOOD % line for line in made))
    metrics = read_metrics(tmp_path)
    assert rewards_of(metrics.steps, "solver") == [0.1, 0.2, 0.3]
    assert [step.step for step in metrics.steps] == [1, 2, 3]
    assert len(metrics.lines) == 4


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
        "held-out accuracy  0.500 → 0.500, on prompts that were not used for training",
        "in the last step 12 tokens (most 40), 12% cut off",
        "calls 1.500 (6 of 8), m0 0.000",
    ):
        assert part in out, part
    assert summary["policies"]["solver"]["episode_metrics"]["calls"]["mean"] == 1.5
    assert [turn["role"] for turn in summary["sample"]["turns"]] == ["prompt", "assistant"]
    picture = (tmp_path / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
    assert report_command(tmp_path, json_output=True) == 0
    assert json.loads(capsys.readouterr().out) == summary
