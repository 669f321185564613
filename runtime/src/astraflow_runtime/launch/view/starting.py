"""How far the start of a run has come: which services are ready, and how much of its model each of the others has read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.config.models import RunConfig
from astraflow_core.protocols.launcher import ProcessState
from astraflow_wire.status import Status

MODEL_FILES = ".safetensors"
_MOST_NAMED = 3
_LOADING = 0.9
"""What a model that is read counts of a service that is ready."""


@dataclass(frozen=True, slots=True)
class StartProgress:
    """``ready`` of ``services`` are ready; of others, by name, the share of the model that they have read, from 0 to 1."""

    ready: int
    services: int
    reading: dict[str, float]

    @property
    def share(self) -> float:
        """The share of the whole start, from 0 to 1."""
        done = self.ready + _LOADING * sum(self.reading.values())
        return min(1.0, done / max(1, self.services))

    def __str__(self) -> str:
        parts = [f"{self.ready} of {self.services} services are ready"]
        read = [f"{name} has read {share:.0%} of its model" for name, share in self.reading.items()]
        return ", ".join([*parts, *read[:_MOST_NAMED], *(["…"] if len(read) > _MOST_NAMED else [])])


class Starting:
    """Called with each new status; a run that has started stays started. ``proc``: where the system
    reports about processes; without it, and for processes of other hosts, it is only known whether they are ready."""

    def __init__(self, config: RunConfig, proc: Path = Path("/proc")) -> None:
        self._policies, self._raas = list(config.policies), config.raas.replicas
        self._proc = proc
        self._read: dict[str, float] = {}
        self._over = False

    def of(self, status: Status, processes: Sequence[ProcessState]) -> StartProgress | None:
        """How far it is; ``None`` when all are ready, the first step is made, or the run ends."""
        ready = {"dataflow"} if status.policies else set[str]()
        for name in self._policies:
            policy = status.policies.get(name)
            if policy is not None and policy.version >= 0 and policy.trainer != "absent":
                ready.add(f"trainer-{name}")
        ready |= {raas.name for raas in status.raas if raas.ready}
        services = 1 + len(self._policies) + max(self._raas, len(status.raas))
        self._over |= len(ready) >= services or status.ended
        self._over |= status.steps > 0 and status.state != "starting"
        if self._over:
            return None
        others = [
            state for state in processes if state.exit_code is None and state.name not in ready
        ]
        return StartProgress(len(ready), services, dict(self._reading(others)))

    def _reading(self, processes: Sequence[ProcessState]) -> Iterator[tuple[str, float]]:
        """Of those that read a model, or have: one that has read it closes its files."""
        for state in processes:
            size, read = 0, 0
            for pid in self._tree(state.pid):
                for file_size, file_read in self._files(pid):
                    size, read = size + file_size, read + file_read
            if size:
                share = max(self._read.get(state.name, 0.0), read / size)
                self._read[state.name] = min(1.0, share)
            elif state.name in self._read:
                self._read[state.name] = 1.0
            if state.name in self._read:
                yield state.name, self._read[state.name]

    def _files(self, pid: int) -> Iterator[tuple[int, int]]:
        """Size, and bytes that are in memory, of each model's file that a process has mapped."""
        folder = self._proc / str(pid)
        with suppress(OSError, ValueError, IndexError):  # it ends, or the kernel is another one
            if MODEL_FILES not in (folder / "maps").read_text("utf-8", errors="replace"):
                return
            found: dict[str, int] = {}
            path = ""
            for line in (folder / "smaps").read_text("utf-8", errors="replace").splitlines():
                if line.startswith("Rss:") and path:
                    found[path] = found.get(path, 0) + 1024 * int(line.split()[1])
                elif MODEL_FILES in line:
                    path = line.split(maxsplit=5)[5]
                elif "-" in line.split(maxsplit=1)[0]:
                    path = ""
            for path, read in found.items():
                size = os.stat(path).st_size
                yield size, min(size, read)

    def _tree(self, pid: int) -> list[int]:
        """A process and all that it has started (proc(5), ``children``)."""
        found = [pid]
        for each in found:
            for file in (self._proc / str(each) / "task").glob("*/children"):
                with suppress(OSError):
                    found += map(int, file.read_text("ascii").split())
        return found
