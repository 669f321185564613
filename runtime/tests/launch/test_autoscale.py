"""What the launcher makes of a report, and which RaaS it starts under which names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_runtime.launch.watch.autoscale import (
    Autoscaler,
    BalanceReply,
    Change,
    PoolNow,
    RaasBalance,
    Report,
    ScalingDecision,
    decide,
    dispensable,
)
from astraflow_runtime.launch.watch.pool import RaasPool
from astraflow_wire.status import PoolStatus, RaasStatus, Status


def balance(size: int, target: int, began_s: float = 100.0, **changes: Any) -> BalanceReply:
    raas = [RaasBalance(name=f"raas-{n}", speed=1.0) for n in range(size)]
    report = Report(
        number=1,
        began_s=began_s,
        pool=ScalingDecision(size=size, target=target, branch="hold", cool_down_s=30),
        raas=changes.pop("raas", raas),
    )
    now = PoolNow(size=changes.pop("now", size), changed_s=50.0)
    return BalanceReply(pool=now, report=report)


@pytest.mark.parametrize(
    ("said", "added", "drained"),
    [
        (balance(2, 4), 2, 0),
        (balance(5, 3), 0, 2),
        (balance(3, 3), 0, 0),
        (balance(2, 4, began_s=79.9), 0, 0),  # the pool changed at 50, the cool-down is 30
        (balance(2, 4, began_s=80.0), 2, 0),
        (balance(2, 4, now=3), 0, 0),  # it is another pool by now
        (BalanceReply(pool=PoolNow(size=2, changed_s=0.0)), 0, 0),
    ],
)
def test_a_report_is_followed_after_the_cool_down(
    said: BalanceReply, added: int, drained: int
) -> None:
    change = decide(said)
    assert (change.add, len(change.drain)) == (added, drained)


def test_silent_and_slow_raas_go_first() -> None:
    raas = [
        RaasBalance(name="raas-0", speed=5.0),
        RaasBalance(name="raas-1", speed=2.0),
        RaasBalance(name="raas-2", state="suspect", speed=9.0),
        RaasBalance(name="raas-3", state="gone"),
        RaasBalance(name="raas-4", draining=True),
        RaasBalance(name="raas-5", ready=False),
        RaasBalance(name="raas-10", speed=5.0),
    ]
    order = ["raas-2", "raas-5", "raas-1", "raas-10", "raas-0"]
    assert [each.name for each in dispensable(raas)] == order
    change = decide(balance(5, 3, raas=raas))
    assert change.drain == ("raas-2", "raas-5")


class Dataflow:
    """Answers as a dataflow does, and notes what it was asked."""

    def __init__(self, said: BalanceReply) -> None:
        self.said, self.asked = said, []

    def get_json(self, path: str, *, deadline_s: float) -> Any:
        assert path == "/v1/balance"
        return msgspec.to_builtins(self.said) | {"tasks": {}}

    def post(self, path: str, message: Any, expected: Any, *, deadline_s: float) -> None:
        self.asked.append((path, getattr(message, "count", None) or message.raas))


class View:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_each_report_is_looked_at_once_and_not_while_raas_come_or_go() -> None:
    view, dataflow = View(), Dataflow(balance(2, 4))
    scaler = Autoscaler(True, view)
    for reports, under_way in [(0, False), (1, True), (1, False), (2, False), (2, False)]:
        scaler.look(Status(pool=PoolStatus(reports=reports)), dataflow, under_way)
    assert dataflow.asked == [("/v1/raas/add", 2)]
    assert view.said == ["autoscale: trainers waited 0% of their time: 2 → 4 RaaS"]
    dataflow.said = balance(4, 2)
    scaler.look(Status(pool=PoolStatus(reports=3)), dataflow, False)
    assert dataflow.asked[1:] == [("/v1/raas/drain", "raas-3"), ("/v1/raas/drain", "raas-2")]
    assert "raas-3, raas-2 drained" in view.said[1]
    by_hand = Autoscaler(False, view)
    by_hand.look(Status(pool=PoolStatus(reports=4)), dataflow, False)
    assert len(dataflow.asked) == 3


def specs(count: int) -> list[ProcessSpec]:
    names = [f"raas-{n}" for n in range(count)]
    return [ProcessSpec(n, "raas", ("x", "--name", n), {}, Path(f"/l/{n}.log")) for n in names]


def test_raas_that_are_asked_for_get_free_names() -> None:
    pool = RaasPool(specs(2))
    assert [s.name for s in pool.begin(Status())] == ["raas-0", "raas-1"]
    there = [RaasStatus(name="raas-2"), RaasStatus(name="elsewhere")]  # somebody else's
    (spec,) = pool.asked_for(Status(raas=there, pool=PoolStatus(added=1)))
    assert (spec.name, spec.argv, spec.log.name) == (
        "raas-3",
        ("x", "--name", "raas-3"),
        "raas-3.log",
    )
    assert list(pool.asked_for(Status(pool=PoolStatus(added=1)))) == []
    assert [s.name for s in pool.asked_for(Status(pool=PoolStatus(added=3)))] == [
        "raas-2",
        "raas-4",
    ]


@pytest.mark.parametrize(
    ("added", "drained", "names"),
    [
        (3, 1, ["raas-0", "raas-1", "raas-2", "raas-3"]),
        (0, 1, ["raas-0"]),
        (1, 5, ["raas-0"]),  # at least one
        (2, 2, ["raas-0", "raas-1"]),
    ],
)
def test_a_resumed_run_begins_with_as_many_as_it_had(
    added: int, drained: int, names: list[str]
) -> None:
    pool, status = RaasPool(specs(2)), Status(pool=PoolStatus(added=added, drained=drained))
    assert [spec.name for spec in pool.begin(status)] == names
    assert list(pool.asked_for(status)) == []


def test_nothing_to_do_is_no_change() -> None:
    assert decide(balance(3, 3)) == Change()
