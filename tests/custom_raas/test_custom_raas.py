"""The rollout service of the example is one for a real run, and `astraflow raas check` tells right from wrong."""

from __future__ import annotations

import ast
import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from astraflow_core.testing.runs import TABLE_RUN, User
from astraflow_core.testing.table import POSITIONS
from astraflow_core.testing.tiny_model import ALPHABET, write_tiny_model

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent.parent / "examples" / "custom_raas" / "raas.py"
WRONG = HERE / "wrong_raas.py"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A table as a model folder."""
    folder = write_tiny_model(tmp_path / "model", hidden=8, layers=1, heads=1, kv_heads=1)
    logits = np.random.default_rng(0).normal(0, 1.5, (POSITIONS, len(ALPHABET)))
    save_file({"logits": logits.astype(np.float32)}, folder / "model.safetensors")
    return folder


def test_it_imports_the_wire_alone() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    modules = [node.module or "" for node in found]
    assert [m for m in modules if m.startswith("astraflow")] == ["astraflow_core.wire"]
    assert len(text.splitlines()) <= 170


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check(
    user: User, model: Path, health: str, command: list[str], code: int, patience: str = "30"
) -> dict[str, Any]:
    """Demand → outcome, by ``astraflow raas check``."""
    file = user.write("table.toml", TABLE_RUN)
    ended = user.astraflow(
        "raas", "check", health, "--run", file, "--set", f"policies.solver.model={model}",
        "--json", "--start", shlex.join(command), "--patience", patience, deadline_s=220,
    )  # fmt: skip
    assert ended.exit_code == code, ended.text
    outcomes = {outcome["demand"]: outcome for outcome in json.loads(ended.out)}
    assert all(o["fix"] for o in outcomes.values() if o["state"] == "failed")
    assert user.left_running() == []
    return outcomes


def test_the_example_meets_every_demand(user: User, model: Path) -> None:
    port = free_port()
    command = [sys.executable, str(EXAMPLE), str(model), "--port", str(port)]
    outcomes = check(user, model, f"http://127.0.0.1:{port}", command, 0)
    assert len(outcomes) == 18
    assert {outcome["state"] for outcome in outcomes.values()} == {"passed"}


@pytest.mark.slow
def test_our_own_meets_every_demand(user: User, model: Path) -> None:
    directory = user.directory / "run"
    command = [
        sys.executable, "-m", "astraflow_core", "raas", str(user.directory / "table.toml"),
        "--set", f"policies.solver.model={model}", "--directory", str(directory), "--name", "raas-0",
    ]  # fmt: skip
    place = directory / "state" / "raas-0" / "raas.json"
    outcomes = check(user, model, str(place), command, 0)
    assert {outcome["state"] for outcome in outcomes.values()} == {"passed"}


@pytest.mark.slow
def test_a_url_where_nobody_answers_is_named(user: User, model: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    outcomes = check(user, model, url, ["sleep", "100"], 1, "1")
    (health,) = [o for told, o in outcomes.items() if told.startswith("It answers GET")]
    assert health["state"] == "failed" and url in health["text"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "demand"),
    [
        ("Hasty", "It asks for tasks only once it serves"),
        ("NewestStamp", "It refuses weights that do not have"),
        ("Credulous", "It refuses weights that do not have"),
        ("Fragile", "It refuses weights that do not have"),
        ("Silent", "It renews its leases"),
        ("Forgetful", "Its renewals name the tasks"),
        ("Proud", "It registers again"),
        ("Restless", "It keeps a pinned version"),
        ("Dropping", "It serves a new version without losing"),
        ("Boundless", "It fails a task whose prompt and max_tokens"),
        ("Impatient", "It pushes the same group again"),
        ("Stubborn", "It leaves when the news say stop"),
        ("Vanishing", "It asks for tasks only once it serves"),
        ("Deaf", "It answers GET /v1/health"),
    ],
)
def test_what_is_wrong_is_found(user: User, model: Path, kind: str, demand: str) -> None:
    port = free_port()
    command = [sys.executable, str(WRONG), kind, str(model), "--port", str(port)]
    outcomes = check(user, model, f"http://127.0.0.1:{port}", command, 1, "8")
    failed = [told for told, outcome in outcomes.items() if outcome["state"] == "failed"]
    assert any(told.startswith(demand) for told in failed), failed


@pytest.mark.slow
def test_the_example_rolls_out_for_a_real_run(user: User) -> None:
    """Dataflow and trainer are ours, the rollouts are not; the table is learnt to the last step."""
    file = user.write("table.toml", TABLE_RUN)
    directory = user.directory / "run"
    user.environment["ASTRAFLOW_TOKEN"] = "of this test"
    flow = user.start("dataflow", file, "--directory", directory)
    place = directory / "dataflow.json"
    user.wait_for(place.is_file)
    url = json.loads(place.read_text())["url"]
    user.environment["ASTRAFLOW_DATAFLOW"] = url
    trainer = user.start("trainer", file, "--directory", directory, "--policy", "solver")
    model = write_tiny_model(user.directory / "m", hidden=8, layers=1, heads=1, kv_heads=1)
    raas = subprocess.Popen(
        [sys.executable, str(EXAMPLE), str(model), "--name", "foreign"], env=user.environment
    )
    try:
        assert user.end(trainer, 120).exit_code == 0
        assert raas.wait(60) == 0
        assert user.end(flow, 60).exit_code == 0
    finally:
        raas.kill()
        raas.wait()
    status = json.loads((directory / "status.json").read_text())
    assert status["steps"] == status["steps_total"] == 8
    assert [raas["name"] for raas in status["raas"]] == ["foreign"]
    assert status["invariants_ok"]
    policy = status["policies"]["solver"]
    assert policy["max_staleness_seen"] <= 2 and policy["trained"] == 8 * 32
