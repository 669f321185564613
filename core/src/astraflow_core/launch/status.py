"""``GET /v1/status`` and ``/v1/waits`` of the dataflow, as the launcher reads them; keys that it does not
know are skipped."""

from __future__ import annotations

from typing import Any

import msgspec

ENDED = ("finished", "stopped", "failed")


def _mean(values: list[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return sum(given) / len(given) if given else None


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Accepted rows of a policy by what became of them."""

    accepted: int = 0
    trained: int = 0
    being_trained: int = 0
    buffered: int = 0
    stale: int = 0
    evicted: int = 0
    lost: int = 0


class PolicyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. ``reward`` is the mean of the last groups; ``metrics`` those of the last step;
    ``staleness`` counts trained sequences by their staleness; ``in_flight`` sequences are being sampled."""

    version: int = -1
    updates: int = 0
    buffered: int = 0
    in_flight: float = 0.0
    rows: Rows = Rows()
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
    """One RaaS: ``serving`` is policy → version; ``ready``: it may get tasks; ``draining``: no new ones."""

    name: str
    state: str = ""
    serving: dict[str, int] = {}
    running: int = 0
    ready: bool = False
    draining: bool = False
    metrics: dict[str, float | None] = {}


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """RaaS asked for and told to leave since the run began; ``reports`` of the balance so far."""

    size: int = 0
    added: int = 0
    drained: int = 0
    reports: int = 0


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


class Evaluations(msgspec.Struct, frozen=True, kw_only=True):
    """Those that ended, oldest first."""

    history: list[Evaluation] = []


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A group that was rolled out lately: what its trajectories said and their rewards."""

    texts: list[str] = []
    rewards: list[float] = []


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The whole. ``waits`` come from an address of their own."""

    state: str = "starting"
    reason: str = ""
    users_mistake: bool = False
    eta_s: float | None = None
    policies: dict[str, PolicyStatus] = {}
    tasks: TaskStatus = TaskStatus()
    raas: list[RaasStatus] = []
    pool: PoolStatus = PoolStatus()
    eval: Evaluations = Evaluations()
    tokens_generated: int = 0
    tokens_trained: int = 0
    samples: list[Sample] = []
    waits: list[WaitStatus] = []

    @property
    def steps(self) -> int:
        """Updates that every policy has made."""
        return min((policy.updates for policy in self.policies.values()), default=0)

    @property
    def evals(self) -> list[Evaluation]:
        """The evaluations that ended."""
        return self.eval.history

    @property
    def ended(self) -> bool:
        """Whether no update will be made any more."""
        return self.state in ENDED

    @property
    def progress(self) -> tuple[object, ...]:
        """Changes whenever the run gets on."""
        updates = tuple(policy.updates for policy in self.policies.values())
        return self.state, updates, self.tasks, self.tokens_generated, len(self.evals)


def parse_status(answer: Any, waits: Any) -> Status:
    """The JSON of the dataflow; raises :class:`msgspec.ValidationError` naming a field of a wrong type."""
    return msgspec.structs.replace(
        msgspec.convert(answer, Status), waits=msgspec.convert(waits, list[WaitStatus])
    )


def parse_evaluation(entry: Any) -> Evaluation:
    """One entry of ``eval.history``, also as ``metrics.jsonl`` has it."""
    return msgspec.convert(entry, Evaluation)
