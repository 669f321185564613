"""The state of a run: starting → running → finishing → finished, or stopping → stopped, or failed."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """``finishing``: all updates are done, the last evaluation runs; back to ``running`` if a
    trainer must repeat some. ``stopping``: a stop was requested, trainers finish their step.
    """

    STARTING = "starting"
    RUNNING = "running"
    FINISHING = "finishing"
    FINISHED = "finished"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


_NEXT = {
    RunState.STARTING: {RunState.RUNNING, RunState.STOPPING, RunState.FAILED},
    RunState.RUNNING: {RunState.FINISHING, RunState.STOPPING, RunState.FAILED},
    RunState.FINISHING: {RunState.RUNNING, RunState.FINISHED, RunState.STOPPING, RunState.FAILED},
    RunState.STOPPING: {RunState.STOPPED, RunState.FAILED},
    RunState.FINISHED: set(),
    RunState.STOPPED: set(),
    RunState.FAILED: set(),
}


class Progress:
    """The state, the reason for it as text, and when it began (seconds of the run's clock); for a
    failed run also whether it is an error of the user.
    """

    def __init__(self, now: float) -> None:
        self.state = RunState.STARTING
        self.reason = "waiting for the first version of every policy"
        self.since = self.began = now
        self.users_mistake = False

    @property
    def ending(self) -> bool:
        """Whether no further update is made and every process gets a stop notice."""
        return self.state in (
            RunState.FINISHED, RunState.STOPPING, RunState.STOPPED, RunState.FAILED
        )  # fmt: skip

    @property
    def over(self) -> bool:
        """Whether the state is final."""
        return not _NEXT[self.state]

    def reopen(self, reason: str, now: float, begun: bool) -> None:
        """Continue a restarted run, even if it was stopped or only had to save its models.
        ``begun``: every policy had a version.
        """
        if self.state in (
            RunState.FINISHING, RunState.FINISHED, RunState.STOPPING, RunState.STOPPED
        ):  # fmt: skip
            self.state = RunState.RUNNING if begun else RunState.STARTING
            self.reason, self.since = reason, now

    def move(self, state: RunState, reason: str, now: float) -> bool:
        """Move to a state if the current one allows it; returns whether it did."""
        if state not in _NEXT[self.state]:
            return False
        self.state, self.reason, self.since = state, reason, now
        return True
