"""A run that trains on what a live service sends it, as `examples/online.toml` says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_examples import EXAMPLES, TABLE

from astraflow_testing.runs import User


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_live_service_trains_the_model(user: User) -> None:
    """Its RaaS is killed on the way: what was open is lost, and the service goes on with the next one."""
    overrides = ["run.steps=6", "workflow.port=0", "checkpoint.every=2"]
    overrides += [f"policies.solver.{key}" for key in TABLE]
    arguments = [part for override in overrides for part in ("--set", override)]
    run = user.start("run", EXAMPLES / "online.toml", *arguments)
    user.wait_for(lambda: bool(list(user.directory.glob("runs/*/online/*.json"))), 120)
    (announced,) = user.directory.glob("runs/*/online/*.json")
    directory = announced.parent.parent
    service = _service(user, directory)
    user.wait_for_steps(2, 120)
    told = json.loads(announced.read_text())
    os.kill(told["pid"], signal.SIGKILL)
    ended = user.end(run, 240)
    out, _ = service.communicate(timeout=60)
    assert ended.exit_code == 0, ended.text
    assert json.loads(announced.read_text())["url"] != told["url"]
    summary = ended.summary
    assert summary["steps"] == 6 and summary["failed"] == 0, summary
    rewarded = int(out.split()[0])
    # A batch has 64 episodes of one sequence.
    assert rewarded >= 6 * 64, out
    assert user.left_running() == []


def _service(user: User, directory: Path) -> subprocess.Popen[str]:
    service = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "online" / "service.py"), str(directory)],
        env=user.environment,
        text=True,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    user.started.append(service)
    return service
