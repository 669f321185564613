"""Which processes of a run are restarted after they were killed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from astraflow_core.protocols.launcher import Launcher, ProcessSpec, ProcessState, Role
from astraflow_runtime.launch.planning.plan import started_anew
from astraflow_runtime.launch.view.views import View
from astraflow_runtime.launch.watch.exit_status import describe_end


@dataclass(frozen=True, slots=True)
class Resuming:
    """Roles whose processes continue when they are restarted: from what they have left on the disk, or from what others
    have."""

    from_disk: Collection[Role]
    from_others: Collection[Role] = ()


class Restarts:
    """Starts processes again, as often as the launcher allows, if their role is one of ``resuming``."""

    def __init__(self, launcher: Launcher, view: View, resuming: Resuming) -> None:
        self._launcher, self._view, self._resuming = launcher, view, resuming

    def left(self, state: ProcessState) -> bool:
        """Whether it was not started too often."""
        return state.restarts < self._launcher.restarts

    def resumes(self, role: Role) -> bool:
        """Whether a process of this role continues from what it has left on the disk."""
        return role in self._resuming.from_disk

    def may_resume(self, state: ProcessState, role: Role) -> bool:
        """Whether a process was killed, continues if restarted, and was not started too often."""
        assert state.exit_code is not None
        continues = self.resumes(role) or role in self._resuming.from_others
        return state.exit_code < 0 and continues and self.left(state)

    def start(self, state: ProcessState, spec: ProcessSpec, when: str = "") -> None:
        """Start it, and say so: what ended, and ``when``."""
        how = describe_end(state, f"{when} and is restarted".strip())
        self._view.say(f"{how} (restart {state.restarts + 1} of {self._launcher.restarts})")
        self._launcher.start(started_anew(spec, state.restarts + 1))
