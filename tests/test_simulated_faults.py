"""The services of a run in one process, on a virtual clock and a network with faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from bench.simulation.network import FaultRates
from bench.simulation.world import ONE_SLOW, simulate

from astraflow_runtime.dataflow.fleet.versions import VersionTable
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.rows.staleness import StalenessBound
from astraflow_runtime.dataflow.rows.stream import PolicyStream
from astraflow_runtime.dataflow.rows.training import Training
from astraflow_runtime.dataflow.state import FlowState
from astraflow_runtime.dataflow.tasks.queue import TaskRecord, TaskTable
from astraflow_runtime.dataflow.timeouts import Watch
from astraflow_runtime.raas.places import EpisodePlaces, TaskPlace
from astraflow_runtime.raas.service import RaasService
from astraflow_wire.status import WaitStatus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]
STEPS = 8
GOING_BACK = FaultRates(every_s=6.0, kinds=("raas", "dataflow", "copy", "copy", "cut", "cut"))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_invariants_hold(seed: int) -> None:
    run = simulate(seed, STEPS)
    assert run.violation is None
    assert run.updates == STEPS
    assert {"slow", "lost", "lost_reply", "doubled", "reordered", "killed"} <= run.faults.keys()


@pytest.mark.parametrize("seed", [5, 6, 8])
def test_all_invariants_hold_if_the_journal_is_replaced_by_an_earlier_copy(seed: int) -> None:
    run = simulate(seed, STEPS, GOING_BACK)
    assert run.violation is None
    assert run.updates == STEPS and run.faults["went_back"] >= 1


def test_all_invariants_hold_while_tasks_are_leased_twice() -> None:
    """One RaaS is slow, so that others get its tasks as well, and all are killed and cut off now and then."""
    runs = [simulate(seed, STEPS, staleness=0, paces=ONE_SLOW) for seed in (1, 2, 3)]
    assert [run.violation for run in runs] == [None] * 3
    assert sum(run.leased_again for run in runs) > sum(run.second_won for run in runs) > 0


def test_all_invariants_hold_however_much_is_leased_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages take 20 ms here, in which hardly an episode ends, so RaaS are made to lease ahead for all running
    episodes."""
    begun: list[bool] = []
    take = EpisodePlaces.take

    def noted(self: EpisodePlaces, episodes: int) -> TaskPlace:
        place = take(self, episodes)
        begun.append(place not in self._waiting)
        return place

    monkeypatch.setattr(EpisodePlaces, "take", noted)
    monkeypatch.setattr(EpisodePlaces, "_ahead", lambda self, group: self.running)
    runs = [simulate(seed, STEPS, paces=ONE_SLOW) for seed in (1, 2, 3)]
    assert [run.violation for run in runs] == [None] * 3
    assert [run.updates for run in runs] == [STEPS] * 3
    assert begun.count(False) > len(begun) / 20


def leases_the_prompt_anew(patch: Callable[..., None]) -> None:
    def wrong(self: FlowState, task: TaskRecord, raas: str, capacity: int) -> TaskRecord:
        self.train.add(task.prompt, task.group_size)
        return self.lease(self.train, raas, capacity)

    patch(FlowState, "lease_again", wrong)


def queues_what_another_works_on(patch: Callable[..., None]) -> None:
    give_back = TaskTable.give_back

    def wrong(self: TaskTable, task: TaskRecord, *args: Any, **named: Any) -> Any:
        twice = task.second is not None
        outcome = give_back(self, task, *args, **named)
        if twice:
            self._queue.appendleft(task)
        return outcome

    patch(TaskTable, "give_back", wrong)


@pytest.mark.parametrize(
    ("mutant", "kind"),
    [(leases_the_prompt_anew, "twice"), (queues_what_another_works_on, "accounting")],
)
def test_a_group_that_is_trained_twice_is_found(
    mutant: Callable[[Callable[..., None]], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch.setattr)
    rates = FaultRates(every_s=6.0, kinds=("raas", "cut"))
    runs = (simulate(seed, STEPS, rates, staleness=0, paces=ONE_SLOW) for seed in range(1, 9))
    assert any(run.violation is not None and run.violation.kind == kind for run in runs)


def takes_all_weights_for_its_own(self: VersionTable, *_: Any) -> dict[str, str]:
    return {}


def looks_at_numbers_alone(self: VersionTable, serving: Any, seen: Any, _: Any) -> dict[str, str]:
    return foreign(self, serving, seen, {})


foreign = VersionTable.foreign


@pytest.mark.parametrize(
    ("mutant", "seeds"),
    [(takes_all_weights_for_its_own, range(1, 9)), (looks_at_numbers_alone, range(29, 41))],
)
def test_weights_of_the_lost_future_are_found(
    mutant: Callable[..., Any], seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change in the timing of services changes the seeds with which it happens."""
    monkeypatch.setattr(VersionTable, "foreign", mutant)
    runs = (simulate(seed, 12, GOING_BACK) for seed in seeds)
    assert any(run.violation is not None and run.violation.kind == "history" for run in runs)


def test_a_seed_is_the_same_run_in_any_process() -> None:
    code = f"from bench.simulation.world import simulate; print(simulate(4, {STEPS}).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    other = subprocess.run(
        [sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=True
    )
    first, second = simulate(4, STEPS), simulate(4, STEPS)
    assert first == replace(second, violation=first.violation)
    assert other.stdout.strip() == first.digest
    assert simulate(5, STEPS).digest != first.digest


def test_a_defect_in_a_service_is_no_fault_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the run; a RaaS that died of it was once started again and again."""

    async def broken(self: RaasService) -> None:
        raise AttributeError("a defect")

    monkeypatch.setattr(RaasService, "_check_engines", broken)
    violation = simulate(1, STEPS).violation
    assert violation is not None and str(violation) == "error: AttributeError: a defect"


def loses_a_row(patch: Callable[..., None]) -> None:
    acknowledge = PolicyStream.acknowledge

    def wrong(self: PolicyStream, batch: str) -> Any:
        done = acknowledge(self, batch)
        self.rows.trained -= done is not None
        return done

    patch(PolicyStream, "acknowledge", wrong)


def forgets_the_newest_version(patch: Callable[..., None]) -> None:
    register = Training.register

    def wrong(self: Training, message: Any) -> Any:
        answer = register(self, message)
        return msgspec.structs.replace(answer, highest_version=max(answer.highest_version - 1, -1))

    patch(Training, "register", wrong)


def forgets_where_a_task_failed(patch: Callable[..., None]) -> None:
    def wrong(self: TaskTable, raas: str = "") -> TaskRecord | None:
        return self._queue[0] if self._queue else None

    patch(TaskTable, "first", wrong)


def ignores_staleness(patch: Callable[..., None]) -> None:
    patch(StalenessBound, "too_stale", lambda *_: False)
    patch(StalenessBound, "oldest", lambda *_: -1)


def repeats_in_another_order(patch: Callable[..., None]) -> None:
    rewind = PolicyStream.rewind

    def wrong(self: PolicyStream, updates: int) -> bool:
        repeated = rewind(self, updates)
        self._to_repeat.reverse()
        return repeated

    patch(PolicyStream, "rewind", wrong)


def forgets_the_end_of_the_journal(patch: Callable[..., None]) -> None:
    entries = Journal.entries
    patch(Journal, "entries", lambda self: iter([*entries(self)][:-8]))


def never_returns_tasks(patch: Callable[..., None]) -> None:
    patch(FlowState, "give_back_all", lambda *_, **__: None)
    patch(Watch, "_leases", lambda _: None)


def waits_for_nobody(patch: Callable[..., None]) -> None:
    wait = WaitStatus(who="a RaaS", for_whom="", what="something", since_s=0.0, until_s=1.0)
    patch(Dataflow, "waits", lambda _: [wait])


@pytest.mark.parametrize(
    ("mutant", "kind"),
    [
        (loses_a_row, "accounting"),
        (forgets_the_newest_version, "versions"),
        (ignores_staleness, "staleness"),
        (repeats_in_another_order, "rows"),
        (forgets_the_end_of_the_journal, "lost"),
        (never_returns_tasks, "progress"),
        (waits_for_nobody, "waits"),
        (forgets_where_a_task_failed, "elsewhere"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_violation_of_each_invariant_is_found(
    mutant: Callable[[Callable[..., None]], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger finds a defect in the dataflow that violates an invariant."""
    mutant(monkeypatch.setattr)
    found = []
    for seed in range(1, 17):
        violation = simulate(seed, STEPS).violation
        found.append(str(violation))
        if violation is not None and violation.kind == kind:
            return
    pytest.fail("\n".join(found))
