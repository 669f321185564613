"""The CPU cost of a pushed group in the dataflow, compared with a bare handler of the same bodies, at 1 to 1000 RaaS."""

from __future__ import annotations

import asyncio
import resource
import statistics
from collections import Counter
from dataclasses import dataclass, field

from astraflow_core.types import Batch
from astraflow_wire.batches import decode_batch
from astraflow_wire.messages import (
    AcknowledgeBatch,
    BatchAcknowledged,
    LeasesRenewed,
    LeaseTasks,
    NextBatch,
    RaasRegistered,
    RegisterRaas,
    RegisterTrainer,
    RenewLeases,
    Task,
    TasksLeased,
    TrainerRegistered,
    VersionAnnounced,
    encode,
)
from bench.support.connection import Connection
from bench.support.groups import FIRST, Groups, announcement, sequence_ids
from bench.support.processes import Service, dataflow, started
from bench.support.timing import cpu_of, ratio, spread

SIZE, LENGTH = 8, 1024
PAIRS, QUICK_PAIRS = 5, 2
DEADLINE_S = 60.0
IDLE_CPU_S = 0.002
POLICY = "solver"
SERVING = {POLICY: 0}


def measure(quick: bool) -> dict[str, float]:
    """CPU of the service over CPU of the bare handler, per number of RaaS.

    ``over_bare_at_N`` is the push alone, with a long-poll of every RaaS open beside it; the field
    ``cycle_over_bare_at_N`` has the leases and the batch in it too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    result: dict[str, float] = {}
    lost = duplicated = 0
    for raas in (1, 1000) if quick else (1, 10, 100, 1000):
        groups = max(200 if quick else 1000, raas)
        seen = asyncio.run(compared(raas, groups, QUICK_PAIRS if quick else PAIRS))
        pushes, cycles, bare = seen.pushes, seen.cycles, seen.bare
        result[f"over_bare_at_{raas}"] = ratio(pushes, bare)
        result[f"spread_at_{raas}"] = spread(pushes, bare)
        result[f"cycle_over_bare_at_{raas}"] = ratio(cycles, bare)
        result[f"push_cpu_ms_at_{raas}"] = 1000 * statistics.median(pushes) / groups
        result[f"cycle_cpu_ms_at_{raas}"] = 1000 * statistics.median(cycles) / groups
        result[f"bare_cpu_ms_at_{raas}"] = 1000 * statistics.median(bare) / groups
        lost, duplicated = lost + seen.lost, duplicated + seen.duplicated
    return {**result, "lost": lost, "duplicated": duplicated}


@dataclass
class Seen:
    """CPU seconds of each round, and the numbers of lost and duplicated sequences."""

    pushes: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    lost: int = 0
    duplicated: int = 0


async def compared(raas: int, groups: int, pairs: int) -> Seen:
    """``pairs`` rounds of ``groups`` pushes to the dataflow and to the bare handler, in turn."""
    batch = {"batch_sequences": groups * SIZE}
    run = {"max_staleness": 0}
    with dataflow(policy=batch, run=run) as ours, started("bench.baselines.bare_push") as theirs:
        fleet = Fleet(ours, raas, groups)
        bare = [await Connection.open(theirs) for _ in range(raas)]
        await fleet.begin()
        seen = Seen()
        for number in range(pairs + 1):
            bodies = fleet.bodies()
            pushed, cycle = await fleet.round(bodies, seen)
            before = cpu_of(theirs.pid)
            await push_all(bare, bodies)
            spent = cpu_of(theirs.pid) - before
            await bare[0].post("/clear", b"")
            if number:  # the first round warms up
                seen.pushes.append(pushed)
                seen.cycles.append(cycle)
                seen.bare.append(spent)
        await fleet.end()
        for connection in bare:
            connection.close()
        return seen


async def push_all(connections: list[Connection], bodies: list[list[bytes]]) -> None:
    """Every RaaS pushes its bodies one after the other, all RaaS at once."""

    async def push(connection: Connection, own: list[bytes]) -> None:
        for body in own:
            await connection.post("/v1/groups", body)

    await asyncio.gather(*map(push, connections, bodies))


async def idle(service: Service) -> None:
    """Wait until the service has handled all requests."""
    async with asyncio.timeout(DEADLINE_S):
        before = -1.0
        while (now := cpu_of(service.pid)) - before > IDLE_CPU_S:
            before = now
            await asyncio.sleep(0.1)


class Fleet:
    """The RaaS of a run and its trainer, as far as the dataflow sees them."""

    def __init__(self, service: Service, raas: int, groups: int) -> None:
        self._service, self._groups = service, groups
        self._names = [f"raas-{index}" for index in range(raas)]
        self._make = Groups(SIZE, LENGTH)
        self._free = SIZE * -(-groups // raas)
        self._pushing: list[Connection] = []
        self._polling: list[Connection] = []
        self._tasks: list[list[Task]] = []

    async def begin(self) -> None:
        """Register everyone, publish version 0, lease the first round's tasks."""
        self._trainer = await Connection.open(self._service)
        hello = RegisterTrainer(policy=POLICY, pid=1, host="bench")
        await self._trainer.send("/v1/trainers/register", hello, TrainerRegistered)
        version = announcement(POLICY)
        await self._trainer.send("/v1/versions", version, VersionAnnounced)
        for name in self._names:
            register = RegisterRaas(
                raas=name, pid=1, host="bench", policies=[POLICY], capacity=self._free
            )
            self._polling.append(await Connection.open(self._service))
            await self._polling[-1].send("/v1/raas/register", register, RaasRegistered)
            # A connection over which nothing is sent at once is closed when there are many of them.
            alive = RenewLeases(raas=name, tasks=[], serving={}, seen={}, incarnation=FIRST)
            self._pushing.append(await Connection.open(self._service))
            await self._pushing[-1].send("/v1/tasks/renew", alive, LeasesRenewed)
        polls = self._open_polls()
        self._tasks = await self._leased(polls)

    def _open_polls(self) -> list[asyncio.Task[TasksLeased]]:
        def poll(name: str, connection: Connection) -> asyncio.Task[TasksLeased]:
            message = LeaseTasks(
                raas=name,
                free=self._free,
                wait_s=60.0,
                serving=SERVING,
                seen=SERVING,
                incarnation=FIRST,
            )
            return asyncio.create_task(connection.send("/v1/tasks/lease", message, TasksLeased))

        return [poll(*pair) for pair in zip(self._names, self._polling, strict=True)]

    async def _leased(self, polls: list[asyncio.Task[TasksLeased]]) -> list[list[Task]]:
        tasks = [(await poll).tasks for poll in polls]
        assert sum(map(len, tasks)) == self._groups, "the bound lets exactly one batch through"
        return tasks

    def bodies(self) -> list[list[bytes]]:
        """The pushes of this round, by RaaS."""
        return [
            [self._make.body(task, name) for task in tasks]
            for name, tasks in zip(self._names, self._tasks, strict=True)
        ]

    async def round(self, bodies: list[list[bytes]], seen: Seen) -> tuple[float, float]:
        """Push, take the batch, acknowledge it, lease again: CPU seconds of the pushes and of all."""
        expected = [i for own in self._tasks for task in own for i in sequence_ids(task.id, SIZE)]
        polls = self._open_polls()
        await idle(self._service)  # until they wait
        began = cpu_of(self._service.pid)
        await push_all(self._pushing, bodies)
        pushed = cpu_of(self._service.pid) - began
        ask = NextBatch(policy=POLICY, version=0, wait_s=10.0, incarnation=FIRST)
        batch = decode_batch(await self._trainer.post("/v1/batches/next", encode(ask)))
        assert isinstance(batch, Batch), batch
        done = AcknowledgeBatch(
            policy=POLICY, batch=batch.id, version=0, metrics={}, incarnation=FIRST
        )
        await self._trainer.send("/v1/batches/ack", done, BatchAcknowledged)
        self._tasks = await self._leased(polls)
        cycle = cpu_of(self._service.pid) - began
        came = Counter(batch.tokens[batch.offsets[:-1]].tolist())
        seen.lost += sum(came[identifier] == 0 for identifier in expected)
        seen.duplicated += sum(came.values()) - len(came)
        return pushed, cycle

    async def end(self) -> None:
        """Close every connection."""
        for connection in [*self._pushing, *self._polling, self._trainer]:
            connection.close()
