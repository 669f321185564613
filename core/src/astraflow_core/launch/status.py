"""``GET /v1/status`` of the dataflow, as the launcher reads it: keys that it does not know are skipped."""

from __future__ import annotations

from typing import Any

import msgspec

ENDED = ("finished", "stopped", "failed")


def _mean(values: list[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return sum(given) / len(given) if given else None


class PolicyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. ``reward`` is the mean of the last batch; ``metrics`` those of the last step;
    ``staleness`` counts trained sequences by their staleness."""

    version: int = 0
    updates: int = 0
    buffered: int = 0
    in_flight: int = 0
    stale: int = 0
    evicted: int = 0
    accepted: int = 0
    trained: int = 0
    reward: float | None = None
    metrics: dict[str, float | None] = {}
    trainer_wait_fraction: float | None = None
    max_staleness_seen: int = 0
    staleness: dict[str, int] = {}


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks by what became of them."""

    admitted: int = 0
    queued: int = 0
    running: int = 0
    accepted: int = 0
    rejected: int = 0
    failed: int = 0
    set_aside: int = 0
    duplicates: int = 0
    lost: int = 0


class RaasStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One RaaS: ``serving`` is policy → version."""

    name: str
    state: str = ""
    serving: dict[str, int] = {}
    running: int = 0
    metrics: dict[str, float | None] = {}
    silent_s: float = 0.0


class PolicyScore(msgspec.Struct, frozen=True, kw_only=True):
    """The same figures for one policy, where there are several."""

    avg: float | None = None


class EvalSet(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one set: ``avg`` = avg@k, ``pass_`` = pass@k, over ``n`` prompts; ``None`` if nothing
    came back."""

    avg: float | None = None
    pass_: float | None = msgspec.field(default=None, name="pass")
    mean_reward: float | None = None
    n: int = 0
    policies: dict[str, PolicyScore] = {}


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation of pinned versions."""

    versions: dict[str, int] = {}
    sets: dict[str, EvalSet] = {}

    @property
    def accuracy(self) -> float | None:
        """Mean of avg@k over the sets that gave one."""
        return _mean([entry.avg for entry in self.sets.values()])

    def accuracy_of(self, policy: str) -> float | None:
        """The same for one policy."""
        if policy not in self.versions:
            return None
        own = (entry.policies.get(policy, entry) for entry in self.sets.values())
        return _mean([entry.avg for entry in own])


class WaitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """``who`` waits ``for_whom`` because of ``what``."""

    who: str
    for_whom: str = ""
    what: str = ""
    since_s: float = 0.0
    until_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.who} waits {self.since_s:.0f} s for {self.for_whom}: {self.what}"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The whole."""

    state: str = "starting"
    reason: str = ""
    steps: int = 0
    eta_s: float | None = None
    policies: dict[str, PolicyStatus] = {}
    tasks: TaskStatus = TaskStatus()
    raas: list[RaasStatus] = []
    evals: list[Evaluation] = []
    tokens_generated: int = 0
    tokens_trained: int = 0
    waits: list[WaitStatus] = []

    @property
    def ended(self) -> bool:
        """Whether no update will be made any more."""
        return self.state in ENDED

    @property
    def progress(self) -> tuple[object, ...]:
        """Changes whenever the run gets on."""
        updates = tuple(policy.updates for policy in self.policies.values())
        return self.state, self.steps, updates, self.tasks, self.tokens_generated, len(self.evals)


def parse_status(answer: Any) -> Status:
    """The JSON of the dataflow; raises :class:`msgspec.ValidationError` naming a field of a wrong type."""
    return msgspec.convert(answer, Status)


def parse_evaluation(entry: Any) -> Evaluation:
    """One entry of ``evals``, also as ``metrics.jsonl`` has it."""
    return msgspec.convert(entry, Evaluation)
