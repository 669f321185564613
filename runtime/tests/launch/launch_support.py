"""Helpers of the launcher tests."""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tomli_w

from astraflow_core.config.models import RunConfig
from astraflow_runtime.launch.planning.prepare import prepare
from astraflow_runtime.launch.results.live_curves import VARIABLE
from astraflow_runtime.launch.run import EndedRun, run_prepared
from astraflow_runtime.launch.view.status import parse_status
from astraflow_wire.status import Status

HERE = Path(__file__).parent
Table = dict[str, Any]


def behaving(table: Table, rate: float = 100.0, restarts: int = 3, **behaviour: str) -> Table:
    """The run with processes that misbehave; names with ``_`` for ``-``."""
    changed = copy.deepcopy(table)
    named = {name.replace("_", "-"): what for name, what in behaviour.items()}
    changed["launcher"] |= {"behaviour": named, "steps_per_s": rate, "restarts": restarts}
    return changed


class Command:
    """``run_file`` in a process of its own, as a terminal starts it; it draws no curves."""

    def __init__(self, table: Table, tmp_path: Path, *flags: str) -> None:
        file = tmp_path / "run.toml"
        file.write_text(tomli_w.dumps(table))
        code = (
            "import sys; from astraflow_runtime.launch.run import run_file; "
            f"sys.exit(run_file({str(file)!r}, json_output={'json' in flags}))"
        )
        self.runs = Path(table["run"]["directory"])
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, VARIABLE: "none"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, *names: str) -> Path:
        """The run directory, once it holds these files."""
        until = time.monotonic() + 40
        while time.monotonic() < until:
            for directory in self.runs.glob("*"):
                if all((directory / name).exists() for name in names):
                    return directory
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)
        raise AssertionError(f"no {names}: {list(self.runs.rglob('*'))}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Exit code and both streams, without the lines that only a slow machine shows."""
        out, err = self.process.communicate(timeout=60)
        told = [line for line in err.splitlines(keepends=True) if not line.endswith(" so far\n")]
        return self.process.returncode, out, "".join(told)


def running(directory: Path) -> list[str]:
    """Names of the fake processes of a run that are still there."""
    found = []
    for file in [*directory.glob("*.pid"), *directory.glob("*.child")]:
        pid = int(file.read_text())
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
            found.append(file.name)
    return found


def gone_within(directory: Path, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while running(directory):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def parsed(table: Table) -> RunConfig:
    """The table as a config."""
    return RunConfig.model_validate(table)


def run_here(table: Table) -> tuple[EndedRun, str]:
    """A run in this process: how it ended and what was printed."""
    output = io.StringIO()
    ended = run_prepared(prepare(table), None, output)
    assert running(ended.directory) == []
    return ended, output.getvalue()


def save_checkpoints(table: Table) -> None:
    """A trainer that continues from what it has saved."""
    table["checkpoint"] = {"every": 2}
    able = {"use": "astraflow_testing.table:TableTrainer"}
    table["policies"]["solver"]["trainer"] = able


SAID = [
    {"role": "prompt", "policy": "solver", "text": "what is three?"},
    {"role": "assistant", "policy": "solver", "text": "three is\n[4]"},
]


SAMPLED = "12 tokens (most 40), 12% cut off, 25% equal groups, 50% passed"


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
        "groups_accepted": 6,
        "rejected": {"all rewards equal": 3, "stale": 1},
        "completion_length_mean": 11.6,
        "completion_length_max": 40,
        "truncated_fraction": 0.125,
        "equal_groups_fraction": 0.25,
        "pass_rate": 0.5,
        "pass_rates": {"gsm": {"mean": 0.5, "episodes": 8}},
        "episodes": 8,
        "episode_metrics": {
            "calls": {"mean": 1.5, "episodes": 6},
            **{f"m{n}": {"mean": float(n), "episodes": 8} for n in range(9)},
        },
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
        "steps": updates,
        "waits": [wait],
        "eta_s": 75.0,
        "policies": {"solver": policy},
        "raas": [{"name": "raas-0", "state": "suspect", "serving": {"solver": 3}, "running": 4}],
        "eval": {
            "history": [{"versions": {"solver": 0}, "sets": {"held": {"avg": 0.5, "n": 4}}}],
            "overlap": {"held": {"trained_on": 0, "prompts": 4}},
        },
        "samples": [{"turns": SAID, "rewards": [0.5]}],
        "something_new": 1,
        **changes,
    }
    return parse_status(answer)
