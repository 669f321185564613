"""Following the balance: what ``[raas] autoscale`` makes the launcher ask of the dataflow."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from astraflow_core.errors import DeadlineExceeded, Refused
from astraflow_runtime.launch.view.views import View
from astraflow_wire.http.client import SyncClient
from astraflow_wire.messages import AddRaas, DrainRaas, PoolChanged
from astraflow_wire.status import Status

AUTHOR = "autoscale"
_DEADLINE_S = 2.0


class RaasBalance(msgspec.Struct, frozen=True, kw_only=True):
    """One RaaS in a report. ``speed``: tokens per second of a busy place."""

    name: str
    state: str = "alive"
    ready: bool = True
    draining: bool = False
    set_aside: str = ""
    speed: float = 0.0


class ScalingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What the three-zone rule says of a pool of ``size``."""

    size: int
    target: int
    branch: str
    held_back: float = 0.0
    cool_down_s: float = 0.0


class PolicyBalance(msgspec.Struct, frozen=True, kw_only=True):
    """One trainer in a report."""

    waiting_fraction: float = 0.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The newest report; ``began_s``: when its first window began, in seconds of the run."""

    number: int
    began_s: float
    pool: ScalingDecision
    policies: dict[str, PolicyBalance] = {}
    raas: list[RaasBalance] = []


class PoolNow(msgspec.Struct, frozen=True, kw_only=True):
    """The pool by now: its size, and when it changed last."""

    size: int
    changed_s: float


class BalanceReply(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/balance``; fields that the launcher does not use are skipped."""

    pool: PoolNow
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """RaaS to ask for, and those to drain; ``why`` for people."""

    add: int = 0
    drain: tuple[str, ...] = ()
    why: str = ""


def decide(balance: BalanceReply) -> Change:
    """What to do about a report: nothing if the pool changed since its windows began, or less than the
    cool-down before; else go to the target."""
    report, pool = balance.report, balance.pool
    if (
        report is None
        or report.pool.size != pool.size
        or report.began_s < pool.changed_s + report.pool.cool_down_s
    ):
        return Change()
    target = report.pool.target
    if target == pool.size:
        return Change()
    if target > pool.size:
        waited = max((policy.waiting_fraction for policy in report.policies.values()), default=0.0)
        return Change(add=target - pool.size, why=f"trainers waited {waited:.0%} of their time")
    return Change(
        drain=tuple(raas.name for raas in dispensable(report.raas)[: pool.size - target]),
        why=f"{report.pool.held_back:.0%} of the places were idle",
    )


def dispensable(raas: Collection[RaasBalance]) -> list[RaasBalance]:
    """RaaS in the order in which to let them go: those that are silent, then those that serve nothing yet,
    then the slowest; of equals the newest."""
    there = [
        r for r in raas if not r.draining and not r.set_aside and r.state in ("alive", "suspect")
    ]
    newest_first = sorted(there, key=lambda r: (len(r.name), r.name), reverse=True)
    return sorted(newest_first, key=lambda r: (r.state == "alive", r.ready, r.speed))


class Autoscaler:
    """Reads each report once, and requests changes from the dataflow."""

    def __init__(self, enabled: bool, view: View) -> None:
        self._enabled, self._view = enabled, view
        self._seen = 0

    def look(self, status: Status, client: SyncClient, under_way: bool) -> None:
        """Act on a new report, unless RaaS still start or leave (``under_way``)."""
        if status.pool.reports == self._seen:
            return
        self._seen = status.pool.reports
        if under_way or not self._enabled:
            return
        try:
            answer: Any = client.get_json("/v1/balance", deadline_s=_DEADLINE_S)
            balance = msgspec.convert(answer, BalanceReply)
            self._do(decide(balance), balance.pool.size, client)
        except (DeadlineExceeded, Refused) as error:
            self._view.say(f"autoscale: {error}; waiting for the next report")

    def _do(self, change: Change, size: int, client: SyncClient) -> None:
        if change == Change():
            return
        becomes = size + change.add - len(change.drain)
        leaving = f"; {', '.join(change.drain)} drained" if change.drain else ""
        self._view.say(f"autoscale: {change.why}: {size} → {becomes} RaaS{leaving}")
        if change.add:
            message = AddRaas(id=uuid.uuid4().hex, count=change.add, author=AUTHOR)
            client.post("/v1/raas/add", message, PoolChanged, deadline_s=_DEADLINE_S)
        for name in change.drain:
            drain = DrainRaas(raas=name, author=AUTHOR)
            client.post("/v1/raas/drain", drain, PoolChanged, deadline_s=_DEADLINE_S)
