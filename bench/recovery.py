"""`kill -9` of each process of a running job: seconds until it makes progress again, and rows lost.

One run with one RaaS, one engine host and one trainer, so that no other process replaces the one that is killed;
the model is a table, so that what is measured is the system and not a framework. The processes are killed
in turn, round after round, each time when the run has made some updates since the recovery before. Then the
same once more with the quickstart's model, engine and trainer (fields ``model_…``; left out if ``quick``).

*Recovery* is the time from the kill to an acknowledged update that needed the killed process: for RaaS and
host the first after the own start whose batch cannot be made of the rows that were accepted before the
kill, for trainer and dataflow the first new one (updates that a restored trainer repeats do not count). The *own start* of the
process that takes the place is from its creation, as the operating system notes it, to the line in its log
that says that it can work: engine host ready (RaaS and host), checkpoint restored (trainer), listening
(dataflow, without the seconds in which it reads its journal back). ``<process>_s`` is the median of
recovery - own start: what it takes to notice the death, to begin the start, to read the journal back, and
to get from a process that can work to an update.

``lost_rows`` counts accepted rows that are unaccounted for after a recovery or at the end
(``/v1/balance``), rows that a restarted dataflow has forgotten, and rows of updates that are missing or
were acknowledged twice.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from astraflow_core.errors import DeadlineExceeded
from astraflow_testing.runs import TABLE_RUN
from astraflow_wire.http.client import SyncClient
from bench.quickstart import EXAMPLES
from bench.support import trees

DEADLINE_S = 120.0
END_S = 60.0
POLL_S = 0.02
OVERRIDES = ("run.steps=1000000", "launcher.restarts=1000")


@dataclass(frozen=True)
class Scenario:
    """A run of ``config`` (TOML), ``overrides`` beside :data:`OVERRIDES`; ``batch`` rows an update, and
    ``settled`` updates between a recovery and the next kill."""

    config: str
    overrides: tuple[str, ...]
    batch: int
    settled: int


TABLE = Scenario(
    TABLE_RUN, ("policies.solver.trainer.step_s=0.05", "checkpoint.every=5"), batch=32, settled=20
)
MODEL = Scenario(
    (EXAMPLES / "quickstart.toml").read_text(),
    # A checkpoint of every update: what a trainer repeats is the choice of the user.
    ("raas.replicas=1", "eval.every=1000000", "checkpoint.every=1"),
    batch=512,
    settled=4,
)


@dataclass(frozen=True)
class Victim:
    """A process to kill: how its command line is known, and what its log (``log``) says when it can work."""

    words: tuple[str, ...]
    log: str
    ready: str


VICTIMS = {
    "raas": Victim(("astraflow_runtime", "raas"), "raas-0", "the engine of policy .* started in"),
    "host": Victim(("astraflow_engine_host.main",), "raas-0", "the engine of policy .* started in"),
    "trainer": Victim(("astraflow_runtime", "trainer"), "trainer-solver", "continuing from"),
    "dataflow": Victim(("astraflow_runtime", "dataflow"), "dataflow", "listening at"),
}  # fmt: skip
RESTORED = r"restored from .* in ([\d.]+) s"


@dataclass(frozen=True)
class Recovery:
    """Seconds: from the kill to the creation of the next process, to its readiness, to progress; and of the
    own start."""

    created_s: float
    ready_s: float
    progress_s: float
    start_s: float

    @property
    def beyond_s(self) -> float:
        """What the system adds to it."""
        return self.progress_s - self.start_s


def measure(quick: bool) -> dict[str, float]:
    """Kill each in turn, a few times."""
    if quick:
        return measured(TABLE, rounds=1)
    table, model = measured(TABLE, rounds=7), measured(MODEL, rounds=3)
    lost = table["lost_rows"] + model["lost_rows"]
    return {**table, **{f"model_{name}": value for name, value in model.items()}, "lost_rows": lost}


def measured(scenario: Scenario, rounds: int) -> dict[str, float]:
    """One run and ``rounds`` kills of each process. ``others_cores``: how many cores other work on the
    machine took meanwhile, on average."""
    began, cpu = time.monotonic(), trees.machine_cpu_s()
    with tempfile.TemporaryDirectory() as folder, Job(Path(folder), scenario) as job:
        recoveries: dict[str, list[Recovery]] = {name: [] for name in VICTIMS}
        for _ in range(rounds):
            for name, found in recoveries.items():
                found.append(job.kill(name))
                print(f"recovery: {name}: {found[-1]}", file=sys.stderr)
        job.settle()
        job.count_lost()
        summary = job.end()
        others = trees.machine_cpu_s() - cpu - summary["cpu_s"]
        details: dict[str, float] = {}
        for name, found in recoveries.items():
            details |= figures(name, found)
        return {
            **{f"{name}_s": details[f"{name}_s"] for name in VICTIMS},
            "lost_rows": job.lost + job.missing_rows(),
            **details,
            "kills": sum(len(found) for found in recoveries.values()),
            "steps": summary["steps"],
            "lost_tasks": summary["lost"],
            "stale_rows": summary["policies"]["solver"]["rows_stale"],
            "evicted_rows": summary["policies"]["solver"]["rows_evicted"],
            "others_cores": others / (time.monotonic() - began),
        }


def figures(name: str, found: list[Recovery]) -> dict[str, float]:
    """Medians, and the least and the most of what counts."""
    beyond = [recovery.beyond_s for recovery in found]
    return {
        f"{name}_s": statistics.median(beyond),
        f"{name}_least_s": min(beyond),
        f"{name}_most_s": max(beyond),
        f"{name}_own_start_s": statistics.median(recovery.start_s for recovery in found),
        f"{name}_noticed_s": statistics.median(recovery.created_s for recovery in found),
        f"{name}_after_start_s": statistics.median(r.progress_s - r.ready_s for r in found),
    }


class Tail:
    """The updates in a growing ``metrics.jsonl``."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._steps: list[tuple[int, float]] = []

    def steps(self) -> list[tuple[int, float]]:
        """Number and time of every update, but those that a restored trainer repeated."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole, end, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(end)
            lines = map(json.loads, whole.splitlines())
            self._steps += [(x["step"], x["time"]) for x in lines if "step" in x and not x["again"]]
        return self._steps


class Job:
    """A run in ``folder``, from its first update to its end."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self._folder, self._scenario = folder, scenario
        self.lost = 0

    def __enter__(self) -> Job:
        config = self._folder / "job.toml"
        config.write_text(self._scenario.config)
        command = [sys.executable, "-m", "astraflow_runtime", "run", str(config), "--no-live"]
        directory = f"run.directory='{self._folder / 'runs'}'"
        for override in (*OVERRIDES, *self._scenario.overrides, directory):
            command += ["--set", override]
        self._launcher = subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )
        try:
            self._wait_for(lambda: any(self._folder.glob("runs/*/dataflow.json")), "its dataflow")
            (self._run,) = (self._folder / "runs").iterdir()
            url = json.loads((self._run / "dataflow.json").read_text())["url"]
            self._client = SyncClient(url, (self._run / "token").read_text())
            self._log = Tail(self._run / "metrics.jsonl")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        trees.kill(self._launcher.pid)
        self._launcher.wait()

    def kill(self, name: str) -> Recovery:
        """SIGKILL, and what follows."""
        self.settle()
        victim = VICTIMS[name]
        process = self._process(victim)
        assert process is not None, f"no process {name!r} runs"
        before = self._rows()
        killed = time.time()
        os.kill(process.pid, signal.SIGKILL)
        while process.pid in trees.tree(self._launcher.pid):
            time.sleep(0.001)
        target = self._target(name)
        # Updates from rows that the killed process had already delivered do not count: they do not need it.
        ready = self._wait_for(
            lambda: self._first_logged(victim.log, victim.ready, killed), f"a new {name}"
        )
        progress = self._wait_for(
            lambda: self._time_of(target, ready), f"update {target} with a new {name}"
        )
        after = self._process(victim)
        assert after is not None and after.pid != process.pid
        start = ready - after.began
        if name == "dataflow":
            start -= self._restored_s(victim.log, killed)
        self.count_lost(at_least=before["accepted"])
        return Recovery(after.began - killed, ready - killed, progress - killed, start)

    def settle(self) -> None:
        """Wait until the run has continued for a while."""
        target = self._steps() + self._scenario.settled
        self._wait_for(lambda: self._steps() >= target, f"update {target}")

    def count_lost(self, at_least: int = 0) -> None:
        """Add rows that are unaccounted for now, and those that are missing in ``at_least``."""
        rows = self._rows()
        self.lost += abs(rows["lost"]) + max(0, at_least - rows["accepted"])

    def end(self) -> dict[str, Any]:
        """Stop the run; its summary."""
        self._launcher.send_signal(signal.SIGINT)
        self._launcher.wait(END_S)
        return dict(json.loads((self._run / "summary.json").read_text()))

    def missing_rows(self) -> int:
        """Rows of updates that should be in the log once and are not."""
        steps = [step for step, _ in self._log.steps()]
        missing = set(range(1, max(steps) + 1)) - set(steps)
        return self._scenario.batch * (len(missing) + len(steps) - len(set(steps)))

    def _target(self, name: str) -> int:
        """The update that needs the process that was just killed."""
        if name in ("trainer", "dataflow"):
            return self._steps() + 1
        rows = self._rows()
        left = rows["accepted"] - rows["stale"] - rows["evicted"]
        return left // self._scenario.batch + 1

    def _rows(self) -> dict[str, int]:
        balance: dict[str, Any] = self._client.get_json("/v1/balance", deadline_s=DEADLINE_S)
        return dict(balance["rows"]["solver"])

    def _process(self, victim: Victim) -> trees.Process | None:
        words = set(victim.words)
        found = trees.tree(self._launcher.pid).values()
        return next((p for p in found if words <= set(p.words)), None)

    def _first_logged(self, name: str, what: str, since: float) -> float | None:
        """When a log first said ``what`` after ``since``."""
        return next((at for at, _ in self._lines(name, what, since)), None)

    def _restored_s(self, name: str, since: float) -> float:
        """The seconds in which a dataflow read its journal back, as its log states."""
        return next(float(match[2]) for _, match in self._lines(name, RESTORED, since))

    def _lines(self, name: str, what: str, since: float) -> Iterator[tuple[float, re.Match[str]]]:
        """Time and match of every line of a log after ``since`` that says ``what``."""
        text = (self._run / "logs" / f"{name}.log").read_text()
        for match in re.finditer(rf"(\S+) INFO \S+ {what}", text):
            at = datetime.fromisoformat(match[1]).timestamp()
            if at > since:
                yield at, match

    def _steps(self) -> int:
        return max((step for step, _ in self._log.steps()), default=0)

    def _time_of(self, target: int, since: float) -> float | None:
        """When after ``since`` an update was acknowledged that is at least ``target``."""
        return next((t for step, t in self._log.steps() if step >= target and t > since), None)

    def _wait_for(self, look: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + DEADLINE_S
        while not (found := look()):
            if self._launcher.poll() is not None:
                raise RuntimeError(f"the run ended with {self._launcher.returncode} before {what}")
            if time.monotonic() > end:
                raise DeadlineExceeded("the run", what, DEADLINE_S)
            time.sleep(POLL_S)
        return found
