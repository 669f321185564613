"""Whether a run has too few or too many RaaS: measured over windows of a few versions, with a
report at the end of each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from astraflow_core.protocols.data_policy import Scale
from astraflow_core.types import PoolTarget, PoolWindow
from astraflow_runtime.dataflow.policies.remembering import attributes, remembers

KEPT_REPORTS = 64


@dataclass(slots=True)
class Work:
    """What a RaaS did: trained ``tokens`` of the groups that it pushed, and of the ``accepted``
    ones; ``busy_s``: slot-seconds with a task; ``idle_s``: slot-seconds that it offered and that
    had none.
    """

    tokens: int = 0
    accepted: int = 0
    busy_s: float = 0.0
    idle_s: float = 0.0

    @property
    def speed(self) -> float:
        """Tokens per second of a busy slot: its speed, regardless of its load."""
        return self.tokens / self.busy_s if self.busy_s > 0 else 0.0


@dataclass(slots=True)
class TrainerWindow:
    """What one trainer measured since ``began`` (set by its first step), by its own clock: its
    steps, the ``seconds`` that they took and ``waited_s``, the part of these for which it waited
    for a batch. Trained tokens by what became of them: ``produced`` by RaaS, ``accepted``,
    ``consumed`` by updates (each row counts once, however often it is replayed). For a trainer that
    shares the stream of another policy these are the shared tokens of that policy."""

    began: float
    steps: int = 0
    versions: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    produced: int = 0
    accepted: int = 0
    consumed: int = 0
    stale_rows: int = 0

    @property
    def waiting(self) -> float:
        """Share of its time that the trainer waited."""
        return min(1.0, self.waited_s / self.seconds) if self.seconds > 0 else 0.0


@dataclass(slots=True)
class _Clock:
    """A trainer's clock: its last step, and the tokens received since."""

    window: TrainerWindow
    last_step: float | None = None
    waited_s: float = 0.0
    consumed: int = 0
    stale_rows: int = 0
    version: int = -1
    produced: int = 0
    accepted: int = 0
    done: bool = False

    def forget(self) -> None:
        self.produced = self.accepted = 0


@dataclass(frozen=True, slots=True)
class StepBalance:
    """The figures of a policy when an update was acknowledged, each since the run began but ``again`` (the
    update was made before), ``version`` (the newest) and ``done`` (it was the last)."""

    waited_s: float
    consumed: int
    stale_rows: int
    version: int
    again: bool
    done: bool


@dataclass
class BalanceMonitor:
    """Adds up tokens and times, and reports when every trainer that still trains has published as
    many versions as the ``rule`` requires. The interval before the first step of a new trainer,
    with what was produced in it, and repeated updates are left out: they measure a start, not the
    balance. Nothing here reads a clock, so a replay of the journal gives the same reports.
    """

    policies: Iterable[str]
    rule: Scale
    work: dict[str, Work] = field(default_factory=dict)
    reports: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=KEPT_REPORTS))
    count: int = 0

    def __post_init__(self) -> None:
        self._clocks = {policy: _Clock(TrainerWindow(0.0)) for policy in self.policies}
        self._work_began = 0.0
        self._idle: dict[str, float] = {}
        self._first = attributes(self.rule)

    @property
    def rule_remembers(self) -> bool:
        """Whether the rule has a state but no ``state_dict``."""
        return remembers(self.rule, self._first)

    def trainer_registered(self, policy: str) -> None:
        """A trainer registered, perhaps again: its clock starts with its first step."""
        self._clocks[policy].last_step = None

    def group_pushed(self, raas: str, policy: str, tokens: int, accepted: bool) -> None:
        """Record that a RaaS pushed a group with that many trained tokens of a policy."""
        work, clock = self._work_of(raas), self._clocks[policy]
        work.tokens += tokens
        clock.produced += tokens
        if accepted:
            work.accepted += tokens
            clock.accepted += tokens

    def rows_shared(self, policy: str, tokens: int) -> None:
        """A policy that shares the stream of another one got rows with that many trained tokens."""
        clock = self._clocks[policy]
        clock.produced += tokens
        clock.accepted += tokens

    def task_ended(self, raas: str, place_s: float) -> None:
        """Record that a task of a RaaS ended that had used that many slot-seconds."""
        self._work_of(raas).busy_s += place_s

    def step_acknowledged(
        self, policy: str, step: StepBalance, now: float, size: int, idle: Mapping[str, float]
    ) -> dict[str, Any] | None:
        """An update was acknowledged, while the pool had ``size`` RaaS with ``idle`` slot-seconds
        (since each registered). Returns the report if the window is complete.
        """
        clock = self._clocks[policy]
        self._add_idle(idle)
        if clock.last_step is None or step.again:
            clock.window.began = now if not clock.window.steps else clock.window.began
            self._forget_work(now)
        else:
            self._add(clock, step, now - clock.last_step)
        clock.forget()
        clock.last_step, clock.waited_s, clock.version = now, step.waited_s, step.version
        clock.consumed, clock.stale_rows, clock.done = step.consumed, step.stale_rows, step.done
        return self._report(now, size) if self._window_complete() else None

    def snapshot(self) -> dict[str, Any]:
        """The whole state, for comparison with that of a replayed journal."""
        clocks = {policy: asdict(clock) for policy, clock in self._clocks.items()}
        return {"clocks": clocks, "count": self.count, "reports": list(self.reports)}

    def _add(self, clock: _Clock, step: StepBalance, seconds: float) -> None:
        window = clock.window
        window.steps += 1
        window.versions += step.version > clock.version
        window.seconds += seconds
        window.waited_s += max(0.0, step.waited_s - clock.waited_s)
        window.produced += clock.produced
        window.accepted += clock.accepted
        window.consumed += step.consumed - clock.consumed
        window.stale_rows += step.stale_rows - clock.stale_rows

    def _window_complete(self) -> bool:
        training = [clock for clock in self._clocks.values() if not clock.done]
        return bool(training) and all(
            clock.window.versions >= self.rule.every for clock in training
        )

    def _report(self, now: float, size: int) -> dict[str, Any]:
        held_back = self._idle_share()
        seen = {policy: c.window for policy, c in self._clocks.items() if c.window.steps}
        targets = {
            policy: self.rule.pool_size(
                PoolWindow(size, window.waiting, window.accepted, window.consumed, held_back)
            )
            for policy, window in seen.items()
        }
        largest = max(targets.values(), key=lambda target: target.size)
        self.count += 1
        report = {
            "number": self.count,
            "at_s": now,
            "began_s": min(window.began for window in seen.values()),
            "pool": {
                "size": size,
                "held_back": held_back,
                "branch": largest.branch,
                "target": largest.size,
                "cool_down_s": self.rule.cool_down_s,
            },
            "policies": {p: _policy(window, targets[p]) for p, window in seen.items()},
            "raas": [_raas(n, w, now - self._work_began) for n, w in sorted(self.work.items())],
        }
        self.reports.append(report)
        for clock in self._clocks.values():
            clock.window = TrainerWindow(now)
        self._forget_work(now)
        return report

    def _idle_share(self) -> float:
        """Share of the offered slots that were idle; below 1, since something was produced."""
        idle = sum(work.idle_s for work in self.work.values())
        busy = sum(work.busy_s for work in self.work.values())
        return idle / (idle + busy) if busy > 0 else 0.0

    def _add_idle(self, idle: Mapping[str, float]) -> None:
        for raas, seconds in idle.items():
            before = self._idle.get(raas, 0.0)
            self._work_of(raas).idle_s += seconds - before if seconds >= before else seconds
        self._idle = dict(idle)

    def _work_of(self, raas: str) -> Work:
        return self.work.setdefault(raas, Work())

    def _forget_work(self, now: float) -> None:
        self.work.clear()
        self._work_began = now


def _policy(window: TrainerWindow, target: PoolTarget) -> dict[str, Any]:
    return {
        "steps": window.steps,
        "versions": window.versions,
        "window_s": window.seconds,
        "waited_s": window.waited_s,
        "waiting_fraction": window.waiting,
        "tokens_produced": window.produced,
        "tokens_accepted": window.accepted,
        "tokens_consumed": window.consumed,
        "stale_rows": window.stale_rows,
        "branch": target.branch,
        "target": target.size,
    }


def _raas(name: str, work: Work, seconds: float) -> dict[str, Any]:
    return {
        "name": name,
        "tokens": work.tokens,
        "tokens_accepted": work.accepted,
        "tokens_per_s": work.tokens / seconds if seconds > 0 else 0.0,
        "busy_s": work.busy_s,
        "idle_s": work.idle_s,
        "speed": work.speed,
    }
