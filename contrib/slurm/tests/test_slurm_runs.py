"""Whole runs on a Slurm cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_slurm import LocalSlurm

from astraflow_testing import cluster_runs
from astraflow_testing.runs import TABLE_RUN, User

pytestmark = [pytest.mark.backend, pytest.mark.timeout(400)]

LAUNCHER = f"""
use = "slurm"
agent_python = "{sys.executable}"
silence_s = 10
"""


@pytest.fixture
def user(tmp_path: Path, slurm: LocalSlurm) -> Iterator[User]:
    somebody = User(tmp_path)
    yield somebody
    somebody.close()


def _state(job: str) -> str:
    command = ["scontrol", "--oneliner", "show", "job", job]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout


def test_two_nodes_two_policies_three_raas_and_a_killed_worker(user: User) -> None:
    """From a login node."""
    launcher = f"{LAUNCHER}raas = {{ count = 2 }}\n"
    cluster_runs.check(user, launcher, lambda u, d: cluster_runs.kill_process(u, "raas-1"), hosts=2)


def test_an_encrypted_run(user: User) -> None:
    launcher = f"{LAUNCHER}raas = {{ count = 2 }}\n"
    cluster_runs.check_encrypted(user, launcher, ("127.0.0.1",), hosts=2)


def test_a_job_goes_on_after_its_time_limit_and_after_preemption(user: User) -> None:
    """The batch script that ``astraflow plan --launcher`` prints: Slurm warns the job, and takes its nodes away later; the
    run ends with all of its steps."""
    user.write("run.toml", f"{TABLE_RUN}\n[launcher]\n{LAUNCHER}\n")
    steps, overrides = 60, ("run.steps=60", "checkpoint.every=5")
    words = [word for each in overrides for word in ("--set", each)]
    printed = user.astraflow("plan", "run.toml", "--launcher", *words)
    assert printed.exit_code == 0, printed.text
    user.write("run.sbatch", printed.out)
    command = ["sbatch", "--parsable", "run.sbatch"]
    job = subprocess.run(
        command, cwd=user.directory, env=user.environment, capture_output=True, text=True, timeout=30, check=True
    ).stdout.strip()  # fmt: skip

    def trained() -> int:
        logs = list(user.directory.glob(f"runs/slurm-{job}/*/metrics.jsonl"))
        return logs[0].read_text().count('"step"') if logs else 0

    def output() -> str:
        return "".join(file.read_text() for file in user.directory.glob("astraflow-*.log"))

    try:
        for count, trouble in enumerate(
            (["scancel", "--batch", "--signal=USR1", job], ["scontrol", "requeue", job]), start=1
        ):
            before = trained()
            user.wait_for(lambda: trained() >= before + 10, 90)  # noqa: B023
            subprocess.run(trouble, timeout=30, check=True)
            user.wait_for(lambda: f"Restarts={count} " in _state(job), 60)  # noqa: B023
        user.wait_for(lambda: "JobState=COMPLETED" in _state(job), 150)
    except TimeoutError as error:
        raise AssertionError(f"{_state(job)}\n{output()}") from error
    finally:
        subprocess.run(["scancel", job], timeout=30, check=False)
    (directory,) = user.directory.glob(f"runs/slurm-{job}/*/status.json")
    status = json.loads(directory.read_text())
    assert status["invariants_ok"], status
    assert trained() >= steps and not user.left_running()
