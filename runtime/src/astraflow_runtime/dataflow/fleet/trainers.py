"""What the dataflow knows about each trainer: signs of life, waits and the last step's metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class TrainerRecord:
    """One policy's trainer. Times are seconds of the run's clock; ``incarnation``: how often one has registered by now,
    the last at ``registered_at``; ``waited_s`` adds up the time that its
    requests for batches were open; ``left``: it has said that all it leaves is on the disk."""

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
    told_end: bool = False
    left: bool = False
    failed: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    steps_done: int = 0
    last_step: float = 0.0

    def heard(self, now: float) -> None:
        """A sign of life."""
        self.last_heard = now

    def alive(self, now: float, silence_s: float) -> bool:
        """Whether it is there: it has registered, has not failed and is not silent for too long."""
        if not self.registered or self.failed:
            return False
        return self.waiting_since is not None or now - self.last_heard < silence_s

    @property
    def owes_a_sign(self) -> bool:
        """Whether it is its turn to call: it is here and does not wait for an answer."""
        return self.registered and not self.failed and self.waiting_since is None

    def ask(self, now: float, wait_s: float) -> None:
        """It begins to wait for a batch."""
        self.heard(now)
        if self.first_asked is None:
            self.first_asked = now
        self.waiting_since, self.waiting_until = now, now + wait_s

    def answered(self, now: float) -> None:
        """Its wait is over, with or without a batch."""
        if self.waiting_since is not None:
            self.waited_s += now - self.waiting_since
            self.waiting_since = None
        self.heard(now)

    def wait_fraction(self, now: float) -> float:
        """Share of the time since its first request that it waited for a batch."""
        if self.first_asked is None or now <= self.first_asked:
            return 0.0
        waited = self.waited_s + (
            now - self.waiting_since if self.waiting_since is not None else 0.0
        )
        return waited / (now - self.first_asked)

    def eta_s(self, updates: int, steps: int) -> float | None:
        """Seconds that the missing updates will take at the pace so far."""
        if updates >= steps:
            return 0.0
        if not self.steps_done or self.first_asked is None:
            return None
        return (steps - updates) * (self.last_step - self.first_asked) / self.steps_done
