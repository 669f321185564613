"""The end of a run: trainers save, RaaS leave, and the dataflow is the last to go."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from astraflow_core.errors import AstraFlowError
from astraflow_core.protocols.launcher import Launcher, ProcessSpec, ProcessState
from astraflow_runtime.launch.view.formatting import duration
from astraflow_runtime.launch.view.views import View
from astraflow_runtime.launch.watch.exit_status import KEEP_STATE, describe_end, error_of
from astraflow_runtime.launch.watch.full_disk import RoomWatch
from astraflow_runtime.launch.watch.restarts import Restarts
from astraflow_runtime.launch.watch.signals import Interrupts
from astraflow_runtime.trainer.checkpoints.store import Checkpoints
from astraflow_wire.status import Status

FINISH_DEADLINE_S = 30.0
_POLL_S = 0.1


class WindDown:
    """Waits until trainers have saved and RaaS have left. A trainer that is killed meanwhile is restarted if it has
    a state to resume from; so is the dataflow, while a trainer runs that may call it. ``look()``:
    the newest status. ``finish_s``: the longest that a trainer may save without progress; time without ``room``
    on the disk does not count."""

    def __init__(
        self,
        specs: Mapping[str, ProcessSpec],
        launcher: Launcher,
        restarts: Restarts,
        view: View,
        interrupts: Interrupts,
        directory: Path,
        look: Callable[[], Status],
        finish_s: float,
        room: RoomWatch,
    ) -> None:
        self._specs, self._launcher, self._restarts = specs, launcher, restarts
        self._view, self._interrupts, self._directory = view, interrupts, directory
        self._look, self._finish_s, self._room = look, finish_s, room
        self._seen: set[tuple[str, int]] = set()
        self._trainers = {n for n, spec in specs.items() if spec.role == "trainer"}
        self._again = False

    def wait(self, status: Status) -> None:
        """Return when all are gone that end by themselves, or when their time is over."""
        since = time.monotonic()
        while True:
            processes = self._launcher.poll()
            self._view.show(status, processes)
            if self._replaced(processes, status):
                since = time.monotonic()
                continue
            if self._again:  # updates may be made once more
                before, status = status.progress, self._look()
                since = time.monotonic() if status.progress != before else since
            if self._room.lacks() and self._interrupts.number is None:
                since = time.monotonic()
            alive = {state.name for state in processes if state.exit_code is None}
            saving, waited = sorted(self._trainers & alive), time.monotonic() - since
            reachable = any(self._specs[name].role == "dataflow" for name in alive)
            if not (saving or (reachable and len(alive) > 1)):
                return  # without a dataflow a RaaS does not learn that it may leave
            if waited > (self._finish_s if saving else FINISH_DEADLINE_S):
                if saving:
                    who = ", ".join(saving)
                    self._view.say(
                        f"{who} did not save its model in {duration(waited)}: terminating it"
                    )
                return
            self._interrupts.sleep(_POLL_S)

    def error(self, processes: Sequence[ProcessState], status: Status) -> AstraFlowError | None:
        """What is lost if a trainer could not save."""
        for state in processes:
            if state.name in self._trainers and state.exit_code not in (0, -signal.SIGTERM):
                remedy = "" if self._state_of(state, status) else KEEP_STATE
                return error_of(state, "before its model was saved", remedy=remedy)
        return None

    def _replaced(self, processes: Sequence[ProcessState], status: Status) -> bool:
        """Restart the killed processes that are needed; whether there were any."""
        ended = [s for s in processes if s.exit_code is not None]
        alive = {state.name for state in processes} - {state.name for state in ended}
        new = [state for state in ended if (state.name, state.restarts) not in self._seen]
        self._seen |= {(state.name, state.restarts) for state in new}
        replaced = False
        for state in sorted(new, key=lambda s: self._specs[s.name].role != "trainer"):
            if self._specs[state.name].role == "trainer" and self._may_save_again(state, status):
                self._restarts.start(state, self._specs[state.name], "while it saved its model")
                alive.add(state.name)
                self._again = replaced = True
        for state in ended:
            if self._specs[state.name].role == "dataflow" and self._trainers & alive:
                replaced |= self._replace_dataflow(state, state in new)
        return replaced

    def _may_save_again(self, state: ProcessState, status: Status) -> bool:
        assert state.exit_code is not None
        kept = self._restarts.resumes("trainer") or self._state_of(state, status)
        return state.exit_code < 0 and self._restarts.left(state) and kept

    def _state_of(self, state: ProcessState, status: Status) -> bool:
        """Whether the state after the last update of a trainer is on the disk."""
        policy = state.name.removeprefix("trainer-")
        made = status.policies[policy].updates if policy in status.policies else -1
        return made in Checkpoints(self._directory / "checkpoints" / policy, policy, keep=1).saved()

    def _replace_dataflow(self, state: ProcessState, new: bool) -> bool:
        when = "after the end of the run, while trainers save"
        if self._restarts.may_resume(state, "dataflow"):
            self._restarts.start(state, self._specs[state.name], f"{when},")
            return True
        if new:
            self._view.say(f"{describe_end(state, when)}; they can continue without it")
        return False
