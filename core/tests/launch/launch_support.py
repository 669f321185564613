"""Helpers of the launcher tests."""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tomli_w

from astraflow_core.config.models import RunConfig

HERE = Path(__file__).parent
Table = dict[str, Any]


def behaving(table: Table, rate: float = 100.0, restarts: int = 3, **behaviour: str) -> Table:
    """The run with processes that misbehave; names with ``_`` for ``-``."""
    changed = copy.deepcopy(table)
    named = {name.replace("_", "-"): what for name, what in behaviour.items()}
    changed["launcher"] |= {"behaviour": named, "steps_per_s": rate, "restarts": restarts}
    return changed


class Command:
    """``run_file`` in a process of its own, as a terminal starts it."""

    def __init__(self, table: Table, tmp_path: Path, *flags: str) -> None:
        file = tmp_path / "run.toml"
        file.write_text(tomli_w.dumps(table))
        code = (
            "import sys; from astraflow_core.launch.run import run_file; "
            f"sys.exit(run_file({str(file)!r}, json_output={'json' in flags}))"
        )
        self.runs = Path(table["run"]["directory"])
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, *names: str) -> Path:
        """The run directory, once it holds these files."""
        until = time.monotonic() + 15
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
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


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
