"""The trainer of the example is one for a real run; killed, it continues from what it saved."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow_testing.runs import TABLE_RUN, User
from astraflow_tiny_model.folder import write_tiny_model

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "custom_trainer" / "trainer.py"
STEPS = 30


def test_it_imports_the_wire_and_the_secret_alone() -> None:
    tree = ast.parse(EXAMPLE.read_text(encoding="utf-8"))
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {m.partition(".")[0] for m in modules if m[:9] == "astraflow"} == {
        "astraflow_core",  # for the shared secret
        "astraflow_wire",
    }
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 220


Services = tuple[subprocess.Popen[str], subprocess.Popen[str], Path, list[str]]


def services(user: User, config: str) -> Services:
    """Dataflow and RaaS of a run, its directory, and the command that starts the trainer."""
    file = user.write("table.toml", config)
    directory = user.directory / "run"
    user.environment["ASTRAFLOW_TOKEN"] = "of this test"
    flow = user.start("dataflow", file, "--directory", directory)
    place = directory / "dataflow.json"
    user.wait_for(place.is_file, 60)
    user.environment["ASTRAFLOW_DATAFLOW"] = json.loads(place.read_text())["url"]
    raas = user.start("raas", file, "--directory", directory, "--name", "raas-0")
    model = write_tiny_model(user.directory / "m", hidden=8, layers=1, heads=1, kv_heads=1)
    given = (model, "--policy", "solver", "--saved", user.directory / "saved")
    return flow, raas, directory, [sys.executable, str(EXAMPLE), *map(str, given)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_example_trains_in_a_real_run_and_continues_after_it_was_killed(user: User) -> None:
    """Dataflow and RaaS are ours, the updates are not; the table is learnt to the last step."""
    config = TABLE_RUN.replace("steps = 8", f"steps = {STEPS}") + "\n[checkpoint]\nevery = 4\n"
    config = config.replace(':TableEngine" }', ':TableEngine", token_s = 0.05 }')
    flow, raas, directory, command = services(user, config)
    saved = user.directory / "saved"
    trainer = subprocess.Popen(command, env=user.environment)
    try:
        user.wait_for(lambda: (saved / "8.npy").is_file(), 90)
        trainer.kill()
        trainer.wait()
        trainer = subprocess.Popen(command, env=user.environment)
        assert trainer.wait(120) == 0
        assert user.end(raas, 60).exit_code == 0
        assert user.end(flow, 60).exit_code == 0
    finally:
        trainer.kill()
        trainer.wait()
    status = json.loads((directory / "status.json").read_text())
    assert status["steps"] == status["steps_total"] == STEPS
    assert status["invariants_ok"]
    policy = status["policies"]["solver"]
    assert policy["max_staleness_seen"] <= 2
    assert policy["released"] == STEPS
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    made = [line for line in lines if "step" in line]
    assert [line["step"] for line in made if not line["again"]] == list(range(1, STEPS + 1))
    versions = [line["version"] for line in made]
    assert versions == sorted(set(versions))
    first, last = (sum(line["reward"] for line in part) / 5 for part in (made[:5], made[-5:]))
    assert last > first + 0.3


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_run_ends_with_the_reason_that_its_trainer_gives(user: User) -> None:
    flow, raas, directory, command = services(user, TABLE_RUN.replace("steps = 8", "steps = 100"))
    (user.directory / "saved" / "draft").mkdir(parents=True)  # where the trainer writes a file
    trainer = subprocess.run(
        command, env=user.environment, stderr=subprocess.PIPE, text=True, timeout=90
    )
    assert trainer.returncode == 1 and "IsADirectoryError" in trainer.stderr
    assert user.end(flow, 60).exit_code == 1
    user.end(raas, 60)
    status = json.loads((directory / "status.json").read_text())
    assert status["state"] == "failed"
    assert "the trainer of 'solver' failed: IsADirectoryError" in status["reason"]
