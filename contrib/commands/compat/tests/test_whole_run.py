"""A run whose only RaaS is foreign: dataflow, trainer and adapter are real processes, and the config is that of the README."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow_testing.runs import TABLE_RUN, User
from astraflow_tiny_model.folder import write_tiny_model

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
EVALUATED = """
[eval]
every = 4

[eval.sets.held_out]
use = "digits"
digits = 2
size = 4
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_learns_with_a_foreign_raas_alone(user: User) -> None:
    (config,) = re.findall(r"```toml\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert config.count(":8000") == 1
    file = user.write("table.toml", TABLE_RUN + EVALUATED)
    door = user.write("compat.toml", config.replace(":8000", ":0"))
    directory = user.directory / "run"
    user.environment["ASTRAFLOW_TOKEN"] = "of this test"
    flow = user.start("dataflow", file, "--directory", directory)
    place = directory / "dataflow.json"
    user.wait_for(place.is_file, 60)
    user.environment["ASTRAFLOW_DATAFLOW"] = json.loads(place.read_text())["url"]
    adapter = user.start("compat", "raas", file, door, "--directory", directory)
    trainer = user.start("trainer", file, "--directory", directory, "--policy", "solver")
    address = directory / "state" / "compat.json"
    user.wait_for(address.is_file, 60)
    model = write_tiny_model(user.directory / "m", hidden=8, layers=1, heads=1, kv_heads=1)
    key = (user.directory / "compat.key").read_text().strip()
    base = f"{json.loads(address.read_text())['url']}/{key}"
    raas = subprocess.Popen(
        [sys.executable, str(HERE / "foreign_raas.py"), str(model), base, "foreign"]
    )
    try:
        assert user.end(trainer, 120).exit_code == 0
        assert user.end(adapter, 60).exit_code == 0
        assert raas.wait(60) == 0  # the adapter has asked for it
        assert user.end(flow, 60).exit_code == 0
    finally:
        raas.kill()
        raas.wait()
    status = json.loads((directory / "status.json").read_text())
    assert status["steps"] == status["steps_total"] == 8
    assert [each["name"] for each in status["raas"]] == ["foreign"]
    assert status["invariants_ok"]
    policy = status["policies"]["solver"]
    assert policy["max_staleness_seen"] <= 2 and policy["trained"] == 8 * 32
    evaluated = [
        line for line in (directory / "metrics.jsonl").read_text().splitlines() if '"eval' in line
    ]
    assert len(evaluated) >= 2
