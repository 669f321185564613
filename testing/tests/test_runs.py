"""Waiting for a run that has ended is over at once, and says why it ended."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from astraflow_testing.runs import User


def started(user: User, code: str) -> None:
    """Start Python code in the place of a run."""
    user.started.append(
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            cwd=user.directory,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    )


RUN = """
from pathlib import Path
run = Path("runs/r")
(run / "logs").mkdir(parents=True)
(run / "logs" / "trainer-solver.log").write_text("1\\n2\\nout of memory\\n")
(run / "metrics.jsonl").write_text('{"step": 1}\\n{"eval": 1}\\n{"step": 2}\\n')
"""


@pytest.mark.parametrize("found_ended", [False, True])
def test_a_run_that_ended_early_is_reported_with_its_last_lines(
    tmp_path: Path, found_ended: bool
) -> None:
    user = User(tmp_path)
    started(user, RUN + 'raise SystemExit("the trainer died")')
    if found_ended:
        user.end(user.started[0], 20)
    with pytest.raises(AssertionError, match="ended before step 3") as caught:
        user.wait_for_steps(3, 1000)
    for part in ("exit code 1", "the trainer died", "trainer-solver.log", "out of memory"):
        assert part in str(caught.value)


def test_the_steps_of_a_run_that_has_ended_count(tmp_path: Path) -> None:
    user = User(tmp_path)
    started(user, RUN)
    assert user.wait_for_steps(2, 1000) == tmp_path / "runs" / "r"


def test_a_run_that_continues_is_waited_for(tmp_path: Path) -> None:
    user = User(tmp_path)
    started(user, "raise SystemExit(2)")  # an earlier command
    started(user, RUN + "import time\ntime.sleep(60)")
    with pytest.raises(TimeoutError, match="was not met within"):
        user.wait_for_steps(3, 0.2)
    user.close()
