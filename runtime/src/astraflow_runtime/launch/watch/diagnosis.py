"""Why a run makes no progress: which process waits for which, and what the awaited processes do."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.protocols.launcher import Launcher, ProcessSpec, ProcessState
from astraflow_runtime.launch.view.formatting import duration
from astraflow_runtime.launch.view.views import View
from astraflow_wire.host.active_clock import active_time
from astraflow_wire.host.disk import is_full
from astraflow_wire.status import WaitStatus

FILE = "diagnosis.txt"
_LAST_LINES = 5
_SEARCHED_LINES = 400
_MOST_SUSPECTS = 6
_BUSY = 0.05
"""Share of a core from which a process counts as busy."""

_HOST = re.compile(r"the engine host of policy '(\w+)' in ([\w.-]+)")


@dataclass(frozen=True)
class Suspect:
    """A process that is waited for: one of the run, or the engine host of ``policy`` within it."""

    process: str
    policy: str = ""


class Watchdog:
    """Looks at the processes of a run, says when one is stopped and when it continues, and explains a
    standstill, on the console and in ``diagnosis.txt`` of the run directory."""

    def __init__(
        self, specs: Iterable[ProcessSpec], launcher: Launcher, directory: Path, view: View
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._launcher, self._file, self._view = launcher, directory / FILE, view
        self._states: dict[str, ProcessState] = {}
        self._stopped: dict[str, float] = {}
        self._marks: dict[str, tuple[float, ProcessState]] = {}

    def add(self, spec: ProcessSpec) -> None:
        """Another process belongs to the run."""
        self._specs[spec.name] = spec

    def look(self, processes: Sequence[ProcessState]) -> None:
        """Take note of what the processes do now."""
        now = active_time()
        for state in processes:
            self._states[state.name] = state
            if state.name not in self._marks or self._marks[state.name][1].pid != state.pid:
                self._marks[state.name] = now, state
            since = self._stopped.get(state.name)
            if state.stopped and since is None:
                self._stopped[state.name] = now
                self._view.say(
                    f"{state.name} is stopped (SIGSTOP); the run waits for it; `kill -CONT {state.pid}` resumes it"
                )
            elif since is not None and not state.stopped:
                del self._stopped[state.name]
                if state.exit_code is None:
                    self._view.say(f"{state.name} continues after {duration(now - since)}")

    @property
    def any_stopped(self) -> bool:
        """Whether a process of the run is stopped."""
        return bool(self._stopped)

    def mark(self) -> None:
        """The run gets on: CPU use is counted from here."""
        now = active_time()
        self._marks = {name: (now, state) for name, state in self._states.items()}

    def explain(self, what: str, waits: Sequence[WaitStatus]) -> str:
        """``what`` is the matter, as a diagnosis for people; also added to the file."""
        lines = [f"{what}; waits:", *(f"  {wait}" for wait in waits)]
        if suspects := self._suspects(waits):
            lines.append("waiting for:")
            for suspect in suspects[:_MOST_SUSPECTS]:
                lines += self._describe(suspect)
        text = "\n".join(lines)
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n\n")
        except OSError as error:
            # A full disk may be the very thing that is explained.
            if not is_full(error, self._file.parent):
                raise
        return text

    def _suspects(self, waits: Sequence[WaitStatus]) -> list[Suspect]:
        """The processes that are waited for and do not wait themselves; all, if each of them waits."""
        named = dict.fromkeys(suspect for wait in waits for suspect in self._named(wait.for_whom))
        waiting = {
            suspect
            for wait in waits
            if wait.who != "dataflow"
            for suspect in self._named(wait.who.partition(":")[0])
        }
        stopped = [Suspect(name) for name in self._stopped]
        ends = [suspect for suspect in named if suspect not in waiting]
        return list(dict.fromkeys([*stopped, *(ends or named)]))

    def _named(self, text: str) -> list[Suspect]:
        """The processes that one side of a wait means."""
        found = [Suspect(host[2], host[1]) for host in _HOST.finditer(text)]
        for part in _HOST.sub("", text).split(", "):
            found += [Suspect(spec.name) for spec in self._specs.values() if _means(part, spec)]
        return found

    def _describe(self, suspect: Suspect) -> list[str]:
        spec = self._specs.get(suspect.process)
        if spec is None or suspect.process not in self._states:
            return [f"  {suspect.process}: not a process that this launcher started"]
        if not suspect.policy:
            lines = self._launcher.logs(suspect.process, _LAST_LINES)
            head = (
                f"  {suspect.process} {self._does(self._states[suspect.process])}; its last lines:"
            )
        else:
            marks = (
                f"engine-{suspect.policy} ",
                f"engine-{suspect.policy}-",
                f"policy '{suspect.policy}'",
            )
            said = self._launcher.logs(suspect.process, _SEARCHED_LINES)
            lines = [line for line in said if any(mark in line for mark in marks)][-_LAST_LINES:]
            head = f"  the engine host of policy '{suspect.policy}' in {suspect.process}; its last lines:"
        return [head, *(f"    {line}" for line in lines or ["(nothing)"])]

    def _does(self, state: ProcessState) -> str:
        """Whether it is stopped, busy or idle."""
        if state.exit_code is not None:
            return f"(pid {state.pid}) has ended"
        since, before = self._marks[state.name]
        seconds = active_time() - since
        used = state.cpu_s - before.cpu_s
        share = used / seconds if seconds > 0 else 0.0
        if state.stopped:
            stopped = duration(active_time() - self._stopped.get(state.name, active_time()))
            return f"(pid {state.pid}) has been stopped for {stopped}"
        does = "busy" if share >= _BUSY else "idle"
        return f"(pid {state.pid}) is {does}: {used:.1f} s of CPU in the last {duration(seconds)}"


def _means(text: str, spec: ProcessSpec) -> bool:
    """Whether ``text`` in a wait means this process: by name, or as one of its kind."""
    kinds = {
        "dataflow": {"the dataflow"},
        "trainer": {spec.name.replace("-", " ", 1), "trainers"},
        "raas": {"rollouts", "a RaaS"},
    }
    return text == spec.name or text in kinds[spec.role]
