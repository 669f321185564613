"""The state of each trainer: heartbeats, waits and the metrics of its last step."""

from __future__ import annotations

from dataclasses import dataclass, field

from astraflow_wire.policy_status import RecoveryStatus


@dataclass(slots=True)
class TrainerRecord:
    """One policy's trainer. Times are seconds of the run's clock; ``incarnation``: how often one
    has registered, the last time at ``registered_at``; ``waited_s``: how long its requests for
    batches were open, in all; ``left``: it has reported that its last checkpoint is on disk; ``recorded_*``:
    ``first_asked`` and ``waited_s`` as the journal has them.
    """

    policy: str
    pid: int = 0
    host: str = ""
    registered: bool = False
    incarnation: int = 0
    registered_at: float = 0.0
    last_heard: float = 0.0
    first_asked: float | None = None
    waiting_since: float | None = None
    waiting_until: float = 0.0
    waited_s: float = 0.0
    saw_end: bool = False
    left: bool = False
    failed: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    recoveries: list[RecoveryStatus] = field(default_factory=list)
    steps_done: int = 0
    last_step: float = 0.0
    recorded_asked: float | None = None
    recorded_waited_s: float = 0.0

    def heard(self, now: float) -> None:
        """Record a heartbeat."""
        self.last_heard = now

    def alive(self, now: float, silence_s: float) -> bool:
        """Whether it is present: registered, not failed, and its heartbeat is recent."""
        if not self.registered or self.failed:
            return False
        return self.waiting_since is not None or now - self.last_heard < silence_s

    @property
    def must_call(self) -> bool:
        """Whether a call from it is expected: it is present and waits for no reply."""
        return self.registered and not self.failed and self.waiting_since is None

    def ask(self, now: float, wait_s: float) -> None:
        """A request for a batch was opened."""
        self.heard(now)
        if self.first_asked is None:
            self.first_asked = now
        self.waiting_since, self.waiting_until = now, now + wait_s

    def answered(self, now: float) -> None:
        """Its request was answered, with or without a batch."""
        if self.waiting_since is not None:
            self.waited_s += now - self.waiting_since
            self.waiting_since = None
        self.heard(now)

    def wait_fraction(self, now: float) -> float:
        """Share of the time since its first request for which it waited for a batch."""
        if self.first_asked is None or now <= self.first_asked:
            return 0.0
        waited = self.waited_s + (
            now - self.waiting_since if self.waiting_since is not None else 0.0
        )
        return waited / (now - self.first_asked)

    def eta_s(self, updates: int, steps: int) -> float | None:
        """Estimated seconds until its last update, at the pace so far."""
        if updates >= steps:
            return 0.0
        if not self.steps_done or self.first_asked is None:
            return None
        return (steps - updates) * (self.last_step - self.first_asked) / self.steps_done
