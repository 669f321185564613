"""A whole run with faults, from a seed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError
from astraflow_core.protocols.data_policy import Scale
from astraflow_runtime.dataflow.progress import RunState
from astraflow_wire.host.active_clock import active_time
from bench.simulation.dataflow_host import DataflowHost, scaling_rule
from bench.simulation.ledger import Ledger, SampledRow, Violation
from bench.simulation.network import FaultRates, FaultyNetwork
from bench.simulation.toy_raas import Lengths, RaasProcess, row_numbers, short
from bench.simulation.toy_trainer import TrainerProcess
from bench.simulation.virtual_loop import Deadlock, VirtualLoop

MEMORY = Path("/dev/shm")
END_S = 20_000.0
"""Virtual seconds that a run may take."""
RESTART_S = 0.5
MOST_BACK = 4
"""How often a run goes back to a copy: one that always does makes no progress."""
DELIVERED_S = 6.0
"""After this time no message of a dead process is on its way."""
STEPS = 20
Paces = tuple[tuple[str, float], ...]
EQUAL: Paces = ()
ONE_SLOW: Paces = (("r2", 4.0),)


def paces_of(seed: int) -> Paces:
    """Half of the runs have a slow RaaS."""
    return ONE_SLOW if seed % 2 else EQUAL


@dataclass(frozen=True)
class SimulatedRun:
    """What came of a seed: ``digest`` of all that happened, in order; ``violation``: kind and text, or ``None``."""

    seed: int
    digest: str
    faults: Counter[str]
    events: int
    updates: int
    virtual_s: float
    violation: Violation | None
    trained: tuple[SampledRow, ...]
    """What was trained, in its order."""
    leased_again: int
    second_won: int


@cache
def _config(steps: int, staleness: int = 1, second_leases: int = 4) -> RunConfig:
    policy = {
        "model": "/nowhere",
        "trainer": {"use": "t"},
        "algorithm": {"use": "a"},
        "engine": {"use": "e"},
        "transport": {"use": "x"},
        "batch_sequences": 8,
    }
    run = {
        "steps": steps, "max_staleness": staleness, "group_size": 4, "lease_s": 6.0, "deadline_s": 20.0,
        "episode_deadline_s": 30.0, "task_attempts": 1000, "max_consecutive_failures": 10_000,
        "second_leases": second_leases,
    }  # fmt: skip
    return RunConfig.model_validate(
        {
            "run": run,
            "prompts": {"use": "p", "shuffle": False},
            "raas": {"replicas": 3, "max_concurrent_episodes": 8},
            "eval": {},
            "checkpoint": {"every": 3},
            "policies": {"solver": policy},
        }
    )


@cache
def _rule() -> Scale:
    return scaling_rule(_config(1))


class World:
    """Everything of one simulated run."""

    def __init__(
        self,
        seed: int,
        steps: int,
        rates: FaultRates,
        folder: Path,
        lengths: Lengths = short,
        staleness: int = 1,
        paces: Paces = EQUAL,
        second_leases: int = 4,
    ) -> None:
        self._lengths, self._paces = lengths, dict(paces)
        self.rng = random.Random(seed)
        self.config = _config(steps, staleness, second_leases)
        self.rates, self.folder = rates, folder
        self.ledger = Ledger(self.config.run.max_staleness)
        self.host = DataflowHost(
            self.config, folder / "journal", _rule(), self.ledger, self._stream(), self.failed
        )
        self.network = FaultyNetwork(self._stream(), rates, self.host, self._noted)
        self.violation: Violation | None = None
        self._over: asyncio.Event = asyncio.Event()
        self._raas: dict[str, RaasProcess] = {}
        self._trainer: asyncio.Task[None] | None = None
        self._numbers = row_numbers()
        self.finished = False
        self._copy: Callable[[], None] | None = None
        self._may_train = asyncio.Event()
        self._may_train.set()

    def _stream(self) -> random.Random:
        """Random numbers of one part, which the others do not disturb."""
        return random.Random(self.rng.getrandbits(64))

    def _noted(self, who: str, path: str, status: int) -> None:
        self.ledger.note(round(asyncio.get_running_loop().time(), 6), who, path, status)

    def failed(self, error: BaseException) -> None:
        """An invariant does not hold, or code failed that must not."""
        if self.violation is None:
            is_one = isinstance(error, Violation)
            self.violation = (
                error if is_one else Violation("error", f"{type(error).__name__}: {error}")  # type: ignore[assignment]
            )
        self._over.set()

    async def run(self) -> None:
        """Run until the run is finished, or an invariant does not hold."""
        self.host.start()
        parts = [self._raas_again(f"r{n}") for n in range(self.config.raas.replicas)]
        parts += [self._trainer_again(), self._faults()]
        tasks = [asyncio.create_task(part) for part in parts]
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(END_S):
                await self._over.wait()
        except TimeoutError:
            self.failed(Violation("progress", f"the run has not ended after {END_S:.0f} s"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.violation is None:
            self._check_end()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)

    def _check_end(self) -> None:
        assert self.host.flow is not None
        progress = self.host.flow.state.progress
        try:
            if progress.state is RunState.FAILED:
                raise Violation("progress", f"the run failed: {progress.reason}")
            self.ledger.lost(self.host.flow)
            if len(self.ledger.trained) != self.config.run.steps:
                raise Violation("lost", f"{len(self.ledger.trained)} updates were made")
        except Violation as violation:
            self.violation = violation

    async def _raas_again(self, name: str) -> None:
        """Restart the RaaS when it has died, as a launcher does."""
        start = 0
        while True:
            process = RaasProcess(
                name,
                start,
                self.config,
                self.network,
                self.ledger,
                self._stream(),
                self._numbers,
                self._lengths,
                self._paces.get(name, 1.0),
            )
            self._raas[name] = process
            if await process.run():
                return
            start += 1
            await asyncio.sleep(RESTART_S)

    async def _trainer_again(self) -> None:
        """Restart the trainer likewise; the run is over once a trainer has exited cleanly."""
        while True:
            await self._may_train.wait()
            process = TrainerProcess(
                self.config, self.folder, self.network, self.ledger, self._stream()
            )
            self._trainer = asyncio.create_task(process.run())
            try:
                await asyncio.shield(self._trainer)
            except asyncio.CancelledError:
                if not self._trainer.cancelled():
                    self._trainer.cancel()
                    raise
            except AstraFlowError as error:
                self.ledger.note("trainer", type(error).__name__)
                flow = self.host.flow
                if flow is not None and flow.state.progress.state is RunState.FAILED:
                    raise Violation("progress", flow.state.progress.reason) from error
            else:
                self.finished = True
                while self.host.flow is None:
                    await asyncio.sleep(RESTART_S)
                self._over.set()
                return
            await asyncio.sleep(RESTART_S)

    async def _faults(self) -> None:
        """Kill or disconnect a process at random times."""
        rng = self._stream()
        names = [*(f"r{n}" for n in range(self.config.raas.replicas)), "trainer"]
        while self.rates.kinds:
            await asyncio.sleep(rng.expovariate(1 / self.rates.every_s))
            kind = rng.choice(self.rates.kinds)
            self.ledger.note(kind)
            now = asyncio.get_running_loop().time()
            if kind == "cut":
                who = rng.choice(names)
                self.network.cut_until[who] = now + rng.expovariate(1 / self.rates.partition_s)
                continue
            if kind == "copy" and self._copy is None:
                self._copy = self._copied()
                continue
            self.network.counts["killed"] += 1
            if kind == "copy":
                await self._go_back(rng)
            elif kind == "raas":
                self._raas[rng.choice(names[:-1])].kill()
            elif kind == "trainer":
                if self._trainer is not None:
                    self._trainer.cancel()
            elif self.host.flow is not None:
                self.host.kill()
                await asyncio.sleep(rng.uniform(0.1, 3.0))
                self.host.start()

    def _copied(self) -> Callable[[], None]:
        """Copy the journal and the checkpoints; the function puts them in the place of what is there then."""
        copy, go_back = self.folder / "copy", self.ledger.keep()
        names = [name for name in ("journal", "checkpoints") if (self.folder / name).exists()]
        for name in names:
            shutil.copytree(self.folder / name, copy / name)

        def put_back() -> None:
            for name in ("journal", "checkpoints"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            for name in names:
                (copy / name).rename(self.folder / name)
            go_back()

        return put_back

    async def _go_back(self, rng: random.Random) -> None:
        """The run goes on from the copy: what came after is lost, but for what RaaS have of it."""
        if self.host.flow is None or self._trainer is None or self._copy is None:
            return
        if self.network.counts["went_back"] == MOST_BACK:
            return
        self._may_train.clear()
        self._trainer.cancel()
        # else its request would mistake the end of the dataflow for its own
        await asyncio.sleep(RESTART_S)
        self.host.kill()
        await asyncio.sleep(DELIVERED_S)
        self._copy()
        self._copy = None
        self.network.counts["went_back"] += 1
        self.host.start(resumed=rng.random() < 0.5)
        self._may_train.set()


def simulate(
    seed: int,
    steps: int = STEPS,
    rates: FaultRates | None = None,
    quiet: bool = True,
    lengths: Lengths = short,
    staleness: int = 1,
    paces: Paces = EQUAL,
    second_leases: int = 4,
) -> SimulatedRun:
    """Play the run of a seed. The same seed gives the same run, to the last message. ``paces``: RaaS → how many times as
    long as the others it takes."""
    rates = rates or FaultRates()
    loop = VirtualLoop()
    base = MEMORY if MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="astraflow-simulated-", dir=base))
    try:
        with _quiet(quiet), active_time.simulated(loop.time):
            world = World(seed, steps, rates, folder, lengths, staleness, paces, second_leases)
            try:
                loop.run_until_complete(world.run())
            except Deadlock as error:
                world.failed(Violation("progress", str(error)))
            finally:
                # Taken before the rest is cancelled, which happens in no fixed order.
                ledger, faults, now = world.ledger, Counter(world.network.counts), loop.now
                digest, events, trained = ledger.digest, ledger.events, dict(ledger.trained)
                twice = world.host.second_leases
                _end(loop)
                if world.host.flow is not None:
                    world.host.kill()
    finally:
        shutil.rmtree(folder)
    rows = tuple(ledger.sampled[row] for step in sorted(trained) for row in trained[step])
    return SimulatedRun(
        seed, digest, faults, events, len(trained), now, world.violation, rows, *twice
    )


def _end(loop: VirtualLoop) -> None:
    """End what is left in a loop, and close it."""
    while left := asyncio.all_tasks(loop):
        for task in left:
            task.cancel()
        with contextlib.suppress(Deadlock):
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
    loop.close()


@contextlib.contextmanager
def _quiet(quiet: bool) -> Iterator[None]:
    """Without the warnings of services that are killed all the time; garbage is collected at the end."""
    before = logging.root.manager.disable
    if quiet:
        logging.disable(logging.CRITICAL)
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        logging.disable(before)
        if enabled:
            gc.enable()
        gc.collect()
