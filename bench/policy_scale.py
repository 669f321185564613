"""The cost of a row in the dataflow of a run with 1, 2, 4 and 8 policies, and the effect of a stalled trainer on the others.

Whatever the number of policies, a group has as many sequences of as many tokens (eight trajectories of eight turns,
which the policies take in turn), a batch as many rows, as many groups may be under way, and there are as many batches
and versions. What differs between the sides is how many streams, trainers and kinds of weights there are.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field

from astraflow_core.types import Batch
from astraflow_wire.batches import decode_batch
from astraflow_wire.messages import (
    AcknowledgeBatch,
    BatchAcknowledged,
    GroupPushed,
    LeaseTasks,
    NextBatch,
    RaasRegistered,
    RegisterRaas,
    RegisterTrainer,
    Task,
    TasksLeased,
    TrainerRegistered,
    VersionAnnounced,
    decode,
    encode,
)
from bench.support.connection import Connection
from bench.support.groups import FIRST, Groups, announcement
from bench.support.processes import Service, dataflow
from bench.support.timing import cpu_of, ratio, spread

COUNTS = (1, 2, 4, 8)
MOST = COUNTS[-1]
SIZE, TURNS, LENGTH = 8, 8, 256
BATCH = 128
BOUND = 16
"""Versions (``max_staleness`` + 1) of all policies together that the rows under way may be trained by."""

RAAS = 4
SILENCE_S = 5.0
"""After so long without a heartbeat the stalled trainer holds nobody up (``[run] deadline_s``)."""

ROUND_S = 120.0
PAIRS, QUICK_PAIRS = 9, 3
WARM_UP = 48
GROUPS, QUICK_GROUPS = 128, 32
"""Of a round; each is a whole number of batches of every policy, and the warm-up more than the bound lets a run begin
while one of its trainers stands still."""


def measure(quick: bool) -> dict[str, float]:
    """``efficiency_at_N``: rows per CPU second of the dataflow with N policies, over those with one.
    ``stall_cost``: the part of the others' rows per (wall) second that is lost once a trainer of the eight has fallen
    silent and is waited for no more; ``stall_cost_cpu`` the same per CPU second of the dataflow, where what is not
    done for the stalled one is gained. ``left_out_s``: from the moment at which it is waited for no more to the next
    lease."""
    pairs, groups = (QUICK_PAIRS, QUICK_GROUPS) if quick else (PAIRS, GROUPS)
    return asyncio.run(_measured(pairs, groups))


async def _measured(pairs: int, groups: int) -> dict[str, float]:
    with ExitStack() as stack:
        sides = {str(count): _run(stack, count) for count in COUNTS}
        sides["stalled"] = _run(stack, MOST, stalled=f"p{MOST - 1}")
        async with asyncio.TaskGroup() as tasks:
            for side in sides.values():
                await side.begin(tasks)
            for _ in range(pairs):
                for side in sides.values():
                    await side.timed(groups)
            for side in sides.values():
                side.end()
    one, whole, stalled = sides["1"], sides[str(MOST)], sides["stalled"]
    result: dict[str, float] = {}
    for count in COUNTS:
        side = sides[str(count)]
        result[f"efficiency_at_{count}"] = ratio(one.cpu_s, side.cpu_s)
        result[f"spread_at_{count}"] = spread(one.cpu_s, side.cpu_s)
        result[f"row_cpu_us_at_{count}"] = 1e6 * statistics.median(side.cpu_s) / side.rows
        result[f"rows_per_s_at_{count}"] = side.rows / statistics.median(side.wall_s)
    return {
        **result,
        "stall_cost": 1 - ratio(whole.wall_s, stalled.wall_s),
        "stall_cost_spread": spread(whole.wall_s, stalled.wall_s),
        "stall_cost_cpu": 1 - ratio(whole.cpu_s, stalled.cpu_s),
        "left_out_s": stalled.left_out_s,
        "lost": sum(side.lost for side in sides.values()),
        "duplicated": sum(side.duplicated for side in sides.values()),
    }


def _run(stack: ExitStack, count: int, stalled: str = "") -> Run:
    bound = {"max_staleness": BOUND // count - 1, "group_size": SIZE}
    policies = tuple(f"p{number}" for number in range(count))
    service = stack.enter_context(
        dataflow(
            policies,
            policy={"batch_sequences": BATCH, "data": [{"use": "dynamic_sampling"}]},
            run=bound | {"deadline_s": SILENCE_S} if stalled else bound,
        )
    )
    return Run(service, policies, stalled)


@dataclass
class Run:
    """RaaS and trainers of a run, as far as its dataflow sees them. The trainer of ``stalled`` publishes its first
    version and does nothing more. Of each timed round: seconds, CPU seconds of the dataflow, and (the same each time)
    ``rows`` for trainers that are there; of all: how many of these rows were ``lost`` or ``duplicated``."""

    service: Service
    policies: tuple[str, ...]
    stalled: str
    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    rows: int = 0
    lost: int = 0
    duplicated: int = 0
    left_out_s: float = 0.0

    def __post_init__(self) -> None:
        self._make = Groups(SIZE, LENGTH, self.policies, TURNS)
        self._versions = dict.fromkeys(self.policies, -1)
        self._trainers: dict[str, Connection] = {}
        self._raas: dict[str, Connection] = {}
        self._training: list[asyncio.Task[None]] = []
        self._to_lease = 0
        self._leased_at: list[float] = []
        self._expected: list[int] = []
        self._came: list[int] = []
        self._trained = asyncio.Event()

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Register everyone, publish the first versions, let the trainers ask, and warm up."""
        for policy in self.policies:
            trainer = self._trainers[policy] = await Connection.open(self.service)
            hello = RegisterTrainer(policy=policy, pid=1, host="bench")
            await trainer.send("/v1/trainers/register", hello, TrainerRegistered)
            await self._publish(policy, 0)
            if policy != self.stalled:
                self._training.append(tasks.create_task(self._train(policy)))
        for number in range(RAAS):
            name = f"raas-{number}"
            self._raas[name] = await Connection.open(self.service)
            register = RegisterRaas(
                raas=name, pid=1, host="bench", policies=list(self.policies), capacity=SIZE
            )
            await self._raas[name].send("/v1/raas/register", register, RaasRegistered)
        # From one group the dataflow learns how many rows the others will bring.
        self._to_lease = 1
        await self._roll_out("raas-0")
        stalled_at = time.monotonic()
        if self.stalled:
            await self._publish(self.stalled, 0)  # its last sign of life
        await self._round(WARM_UP - 1)
        late = [at - stalled_at - SILENCE_S for at in self._leased_at]
        self.left_out_s = min((seconds for seconds in late if seconds >= 0), default=0.0)

    async def timed(self, groups: int) -> None:
        """A round, measured."""
        began, spent = time.monotonic(), cpu_of(self.service.pid)
        await self._round(groups)
        self.cpu_s.append(cpu_of(self.service.pid) - spent)
        self.wall_s.append(time.monotonic() - began)

    def end(self) -> None:
        """Close all connections."""
        for task in self._training:
            task.cancel()
        for connection in [*self._raas.values(), *self._trainers.values()]:
            connection.close()

    async def _round(self, groups: int) -> None:
        """Roll ``groups`` out and train on every row of them."""
        self._to_lease = groups
        async with asyncio.timeout(ROUND_S):
            await asyncio.gather(*map(self._roll_out, self._raas))
            while len(self._came) < len(self._expected):
                self._trained.clear()
                await self._trained.wait()
        times = Counter(self._came)
        self.rows = len(self._expected)
        self.lost += sum(times[identifier] == 0 for identifier in self._expected)
        self.duplicated += len(self._came) - len(times)
        self._expected, self._came = [], []

    async def _roll_out(self, name: str) -> None:
        """One RaaS: leases and pushes groups, one after another, until none of the round is left."""
        connection = self._raas[name]
        while self._to_lease:
            self._to_lease -= 1
            leased: list[Task] = []
            serving: dict[str, int] = {}
            while not leased:
                serving = dict(self._versions)
                ask = LeaseTasks(
                    raas=name,
                    free=SIZE,
                    wait_s=60.0,
                    serving=serving,
                    seen=serving,
                    incarnation=FIRST,
                )
                leased = (await connection.send("/v1/tasks/lease", ask, TasksLeased)).tasks
            self._leased_at.append(time.monotonic())
            (task,) = leased
            for policy in self.policies:
                if policy != self.stalled:
                    self._expected += self._make.ids(task.id, policy)
            body = self._make.body(task, name, serving)
            answer = decode(await connection.post("/v1/groups", body), GroupPushed)
            assert answer.status == "accepted", answer

    async def _train(self, policy: str) -> None:
        """One trainer: takes batches and publishes a version after each."""
        trainer = self._trainers[policy]
        while True:
            ask = NextBatch(
                policy=policy, version=self._versions[policy], wait_s=60.0, incarnation=FIRST
            )
            batch = decode_batch(await trainer.post("/v1/batches/next", encode(ask)))
            if isinstance(batch, Batch):
                version = self._versions[policy] + 1
                await self._publish(policy, version)
                done = AcknowledgeBatch(
                    policy=policy, batch=batch.id, version=version, metrics={}, incarnation=FIRST
                )
                await trainer.send("/v1/batches/ack", done, BatchAcknowledged)
                self._came += batch.tokens[batch.offsets[:-1]].tolist()
                self._trained.set()

    async def _publish(self, policy: str, version: int) -> None:
        message = announcement(policy, version)
        await self._trainers[policy].send("/v1/versions", message, VersionAnnounced)
        self._versions[policy] = version
