"""A run that is started again in its directory."""

from __future__ import annotations

import io
import json
import shutil
import tomllib
from pathlib import Path

import pytest
import tomli_w
from launch_support import Table, behaving, parsed, run_here

from astraflow_core.errors import UserError
from astraflow_runtime.launch.conclusion import conclude
from astraflow_runtime.launch.planning.resume import begin_again, resume
from astraflow_runtime.launch.run import EndedRun, run_prepared
from astraflow_wire.http.auth import is_token

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run that all tests copy."""
    return tmp_path_factory.mktemp("stopped") / "run"


@pytest.fixture
def stopped(table: Table, kept: Path, tmp_path: Path) -> Path:
    """The directory of a run that was stopped after its steps."""
    if not kept.exists():
        make_stopped(table).rename(kept)
    return shutil.copytree(kept, tmp_path / "run")


def make_stopped(table: Table) -> Path:
    ended, _ = run_here(table)
    directory = ended.directory
    (directory / "journal").mkdir()
    (directory / "journal" / "entries.log").write_bytes(b"entries")
    (directory / "checkpoints" / "solver" / "update-00000020").mkdir(parents=True)
    (directory / "checkpoints" / "solver" / "update-00000020" / "checkpoint.json").write_text("{}")
    summary = json.loads((directory / "summary.json").read_text()) | {"state": "stopped"}
    (directory / "summary.json").write_text(json.dumps(summary))
    return directory


def again(directory: Path, **behaviour: str) -> tuple[EndedRun, str]:
    """Go on with it; the processes behave so."""
    config = tomllib.loads((directory / "config.toml").read_text())
    (directory / "config.toml").write_text(tomli_w.dumps(behaving(config, restarts=0, **behaviour)))
    output = io.StringIO()
    return run_prepared(resume(directory), None, output), output.getvalue()


@pytest.mark.parametrize("left", ["metrics.jsonl", "checkpoints"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_run_whose_journal_is_missing_is_refused(stopped: Path, left: str, empty: bool) -> None:
    resume(stopped)
    if empty:
        (stopped / "journal" / "entries.log").write_bytes(b"")
    else:
        shutil.rmtree(stopped / "journal")
    if left == "checkpoints":
        (stopped / "metrics.jsonl").unlink()
    else:
        shutil.rmtree(stopped / "checkpoints")
    with pytest.raises(
        UserError, match=r"journal .* is missing.* Restore the folder .*journal', or start"
    ):
        resume(stopped)


def test_a_run_that_made_no_step_needs_no_journal(stopped: Path) -> None:
    for folder in ("journal", "checkpoints"):
        shutil.rmtree(stopped / folder)
    (stopped / "metrics.jsonl").write_bytes(b"")
    resume(stopped)


def test_a_damaged_summary_keeps_no_run_from_going_on(stopped: Path) -> None:
    (stopped / "summary.json").write_text('{"state": "fini')
    resume(stopped)


def test_a_resumed_run_that_gets_nowhere_keeps_its_figures(stopped: Path) -> None:
    before = json.loads((stopped / "summary.json").read_text())
    assert before["steps"] == 20
    ended, _ = again(stopped, dataflow="die_early")
    assert ended.exit_code == 1
    after = json.loads((stopped / "summary.json").read_text())
    assert after == ended.summary
    assert after == {**before, "state": "failed", "exit_code": 1, "error": str(ended.error)}


def test_a_resumed_run_that_gets_nowhere_invents_no_figures(stopped: Path) -> None:
    (stopped / "summary.json").unlink()
    ended, _ = again(stopped, dataflow="die_early")
    assert ended.exit_code == 1
    assert not (stopped / "summary.json").exists()


def test_a_resumed_run_that_gets_nowhere_ends_in_order_where_fields_are_missing(
    stopped: Path,
) -> None:
    (stopped / "summary.json").write_text('{"state": "stopped", "steps": 20}')
    ended, said = again(stopped, dataflow="die_early")
    assert ended.exit_code == 1
    assert "summary.json was damaged and has been removed" in said
    assert not (stopped / "summary.json").exists()


def test_a_damaged_line_of_the_metrics_ends_no_run(stopped: Path) -> None:
    content = (stopped / "metrics.jsonl").read_bytes()
    (stopped / "metrics.jsonl").write_bytes(b"\xff" + content)
    ended, output = again(stopped)
    assert ended.exit_code == 0
    assert output.count("line 1 is ignored") == 1
    assert ended.summary["steps"] == 20


@pytest.mark.parametrize(
    ("state", "steps", "offer"),
    [
        ("failed", 0, ""),
        ("failed", 3, "after fixing the cause, resume with: astraflow run --resume "),
        ("stopped", 3, "to continue: astraflow run --resume "),
        ("killed", 3, "to continue: astraflow run --resume "),
    ],
)
def test_going_on_is_offered_where_it_can_succeed(
    table: Table, tmp_path: Path, state: str, steps: int, offer: str
) -> None:
    table["checkpoint"] = {"every": 1}
    summary = {"state": state, "steps": steps, "steps_planned": 9, "name": "fake"}
    stream = io.StringIO()
    conclude(summary, tmp_path, parsed(table), stream)
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if "--resume" in line] == (
        [f"{offer}{tmp_path}"] if offer else []
    )
    assert len(lines) <= 4
    if state == "failed":
        assert f"  logs of all processes: {tmp_path}/logs" in lines


@pytest.mark.parametrize("left", [b"", bytes(40), b"\xe9"])
def test_a_token_that_power_loss_left_is_made_anew(stopped: Path, left: bytes) -> None:
    place = stopped / "token"
    before = place.read_text()
    assert resume(stopped).token == before
    place.write_bytes(left)
    prepared = resume(stopped)
    assert is_token(prepared.token) and prepared.token != before
    assert f"{place} was damaged and has been replaced with a new token" in prepared.notes
    assert place.read_bytes() == left, "nothing is written before all is checked"
    begin_again(prepared)
    assert place.read_text() == prepared.token
    assert place.stat().st_mode & 0o777 == 0o600
