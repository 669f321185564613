"""Services under measurement, each in a separate process that ends with the ``with`` block."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.config.models import RunConfig

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
STOP_S = 2.0
TOKEN = "bench"


@dataclass(frozen=True)
class Service:
    """A process that listens at ``url`` (``host:port`` if it does not serve HTTP)."""

    url: str
    pid: int

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.rpartition("/")[2].rpartition(":")
        return host, int(port)


@contextlib.contextmanager
def started(module: str, *arguments: str) -> Iterator[Service]:
    """``python -m MODULE FILE ARGUMENTS``, which writes ``{"url", "pid"}`` to FILE once it listens."""
    with (
        tempfile.TemporaryDirectory() as folder,
        started_in(Path(folder), module, *arguments) as it,
    ):
        yield it


@contextlib.contextmanager
def started_in(folder: Path, module: str, *arguments: str) -> Iterator[Service]:
    """The same in ``folder``, which may hold what an earlier one left; the process may end within the context."""
    file = folder / "service.json"
    file.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(file), *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )
    try:
        end = time.monotonic() + START_S
        while not file.exists():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{module} did not start (exit code {process.poll()})")
            time.sleep(0.01)
        facts = json.loads(file.read_text())
        yield Service(facts["url"], facts["pid"])
    finally:
        end_of(process)


@contextlib.contextmanager
def running(module: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """``python -m MODULE ARGUMENTS`` in an environment with these besides, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            end_of(process)


def wait_for(processes: Sequence[subprocess.Popen[bytes]], deadline_s: float) -> None:
    """Return when all have exited with 0; raises as soon as one has failed, or at the deadline."""
    end = time.monotonic() + deadline_s
    while (codes := [process.poll() for process in processes]) != [0] * len(processes):
        if any(codes) or time.monotonic() > end:
            raise RuntimeError(f"the processes were to end with 0; now they have {codes}")
        time.sleep(0.05)


def end_of(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM twice, since the dataflow waits for its clients after the first, then SIGKILL if needed."""
    for end in (process.terminate, process.terminate, process.kill):
        end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
            return


def announce(file: Path, url: str) -> None:
    """Called by a service: write FILE whole, or not at all."""
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"url": url, "pid": os.getpid()}))
    partial.rename(file)


def dataflow(
    policies: Sequence[str] = ("solver",), **changes: Mapping[str, object]
) -> contextlib.AbstractContextManager[Service]:
    """The dataflow of a run with these policies; ``changes`` are tables of the config, ``policy`` that of each."""
    config = dataflow_config(policies, **changes)
    return started("bench.support.dataflow", config.model_dump_json())


def dataflow_config(policies: Sequence[str], **changes: Mapping[str, object]) -> RunConfig:
    """A config whose other components are named and never built."""
    unused = {"use": "bench.support.parts:Prompts"}
    policy: dict[str, object] = {
        "model": "none", "trainer": unused, "algorithm": unused, "engine": unused,
        "transport": unused, "batch_sequences": 128,
    }  # fmt: skip
    raw: dict[str, dict[str, object]] = {
        "run": {"steps": 1_000_000, "max_staleness": 1, "group_size": 8, "lease_s": 600.0,
                "start_deadline_s": 600.0, "deadline_s": 600.0, "episode_deadline_s": 600.0},
        "prompts": {"use": "bench.support.parts:Prompts"},
    }  # fmt: skip
    for table, keys in changes.items():
        (policy if table == "policy" else raw.setdefault(table, {})).update(keys)
    return RunConfig.model_validate({**raw, "policies": dict.fromkeys(policies, policy)})
