"""Whole runs as a user would start them: a config, the command `astraflow`, real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE_RUN = """
[run]
name = "table"
steps = 8
max_staleness = 2
group_size = 8
episode_deadline_s = 10
deadline_s = 20
lease_s = 2

[prompts]
use = "digits"
digits = 2

[workflow]
use = "single_turn"

[reward]
use = "exact"
partial = "positions"

[sampling]
max_tokens = 3

[policies.solver]
model = "tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1"
batch_sequences = 32
engine = { use = "astraflow_testing.table:TableEngine" }
trainer = { use = "astraflow_testing.table:TableTrainer" }
algorithm = { use = "astraflow_testing.table:TableAlgorithm" }
transport = { use = "http" }

[raas]
replicas = 1
max_concurrent_episodes = 64
"""
"""A run without a deep learning framework: everything is real but the model, which is a table."""


@dataclass(frozen=True)
class EndedCommand:
    """A command that ended."""

    exit_code: int
    out: str
    err: str
    directory: Path

    @property
    def text(self) -> str:
        """Both streams."""
        return self.out + self.err

    @property
    def run_directory(self) -> Path:
        """The one run in the user's folder."""
        (found,) = (self.directory / "runs").iterdir()
        return found

    @property
    def summary(self) -> dict[str, Any]:
        """What the run left in summary.json."""
        return dict(json.loads((self.run_directory / "summary.json").read_text()))


def live_commands(marker: str) -> dict[int, list[str]]:
    """Processes whose command line or environment names ``marker``, zombies left out, and their command lines as they were
    at one moment: a process may be gone, or another program, when it is looked at again."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            text = command + (entry / "environ").read_bytes()
            zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if marker.encode() in text and not zombie:
            found[int(entry.name)] = command.decode(errors="replace").split("\0")
    return found


def live_processes(marker: str) -> list[int]:
    """The processes of :func:`live_commands`."""
    return list(live_commands(marker))


class User:
    """Somebody at a terminal in a folder of their own. Their runs draw no curves, which would take two CPU seconds of
    each: a test that looks at them deletes ``ASTRAFLOW_CURVES`` from ``environment``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.marker = f"astraflow-test-{os.getpid()}-{directory.name}"
        self.environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(directory / "cache"),
            "ASTRAFLOW_CURVES": "none",
            "ASTRAFLOW_TEST_MARKER": self.marker,
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(directory), os.environ.get("PYTHONPATH")])
            ),
        }
        self.started: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> Path:
        """A file in the user's folder."""
        path = self.directory / name
        path.write_text(text)
        return path

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start `astraflow ARGUMENTS`."""
        command = [sys.executable, "-m", "astraflow_runtime", *map(str, arguments)]
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env=self.environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[str], deadline_s: float) -> EndedCommand:
        """Wait for it; the test fails at the deadline."""
        out, err = process.communicate(timeout=deadline_s)
        return EndedCommand(process.returncode, out, err, self.directory)

    def astraflow(self, *arguments: str | Path, deadline_s: float = 60) -> EndedCommand:
        """Run `astraflow ARGUMENTS` to its end."""
        return self.end(self.start(*arguments), deadline_s)

    def run_table(
        self, *overrides: str, deadline_s: float = 60, config: str = TABLE_RUN
    ) -> EndedCommand:
        """Run the table config with ``--set`` overrides."""
        return self.astraflow(
            *self.table_arguments(*overrides, config=config), deadline_s=deadline_s
        )

    def table_arguments(self, *overrides: str, config: str = TABLE_RUN) -> list[str]:
        """The arguments of :meth:`run_table`."""
        path = self.write("table.toml", config)
        return ["run", str(path), *(part for o in overrides for part in ("--set", o))]

    def left_running(self, within_s: float = 5) -> list[int]:
        """Processes of this user that are still there after ``within_s``."""
        end = time.monotonic() + within_s
        while (found := live_processes(self.marker)) and time.monotonic() < end:
            time.sleep(0.1)
        return found

    def wait_for(self, condition: Callable[[], bool], deadline_s: float = 30) -> None:
        """Poll until ``condition`` holds."""
        end = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{condition} was not met within {deadline_s} s\n{self.last_words()}"
                )
            time.sleep(0.05)

    def wait_for_steps(self, count: int, deadline_s: float = 60) -> Path:
        """Wait until a run in ``runs/`` has ``count`` steps in its metrics; returns its directory.

        Raises ``AssertionError`` with the run's last words as soon as all that the user started has ended.
        """

        def enough() -> bool:
            logs = list(self.directory.glob("runs/*/metrics.jsonl"))
            return bool(logs) and logs[0].read_text().count('"step"') >= count

        def enough_or_ended() -> bool:
            ended = bool(self.started) and all(p.poll() is not None for p in self.started)
            if ended and not enough():
                raise AssertionError(f"ended before step {count}:\n{self.last_words()}")
            return ended or enough()

        self.wait_for(enough_or_ended, deadline_s)
        return next(self.directory.glob("runs/*"))

    def last_words(self, lines: int = 15) -> str:
        """The exit code and streams of the command that was started last, if it has ended, and the last lines
        of each log of the runs."""
        told = []
        process = self.started[-1] if self.started else None
        if process and process.poll() is not None:
            told.append(f"exit code {process.returncode}")
            # Whoever it left behind may hold its streams open.
            with contextlib.suppress(subprocess.TimeoutExpired):
                told += [_last(stream, lines) for stream in process.communicate(timeout=5)]
        for log in sorted(self.directory.glob("runs/*/logs/*.log")):
            told.append(f"--- {log.name}\n{_last(log.read_text(errors='replace'), lines)}")
        return "\n".join(told)

    def close(self) -> None:
        """End whatever the user's commands left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        for pid in live_processes(self.marker):
            os.kill(pid, signal.SIGKILL)


def _last(text: str, lines: int) -> str:
    return "\n".join(text.rstrip().splitlines()[-lines:])
