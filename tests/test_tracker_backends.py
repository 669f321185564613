"""Trackers whose libraries are not in the environment of the tests keep the suite, in an interpreter that has them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from agent_clients.environment import interpreter_with

pytestmark = [pytest.mark.backend, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).parent / "tracker_backends"


def of(tracker: str, requirements: str) -> ParameterSet:
    """What a test is about. Those of one interpreter take turns together."""
    about = pytest.mark.turns(
        f"contrib/trackers/{tracker}/src/**/*.py",
        "libs/trackers/src/**/*.py",
        "testing/src/astraflow_testing/conformance/tracker.py",
        "tests/agent_clients/environment.py",
        "tests/tracker_backends/*",
        unit=f"trackers of {requirements}",
    )
    return pytest.param(tracker, requirements, marks=about)


@pytest.mark.parametrize(
    ("tracker", "requirements"),
    [
        of("wandb", "requirements.txt"),
        of("mlflow", "requirements.txt"),
        of("trackio", "older_libraries.txt"),
        of("swanlab", "older_libraries.txt"),
    ],
)
def test_it_keeps_the_suite(tracker: str, requirements: str, tmp_path: Path) -> None:
    sources = ("core", "testing", "libs/trackers", f"contrib/trackers/{tracker}")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / source / "src") for source in sources),
        "HOME": str(tmp_path),
    }
    command = [
        interpreter_with(HERE / requirements), "-m", "pytest", "--noconftest", "-q", "-c", os.devnull,
        "-k", "not says_where and not given_last", "--rootdir", str(HERE),
        "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'runs'}", str(HERE / f"suite_{tracker}.py"),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "failed" not in done.stdout
