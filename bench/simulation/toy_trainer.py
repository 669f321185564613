"""The trainer of a simulated run: its real loop, client, versions and checkpoints, with a counter instead of a model."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from astraflow_core.config.models import RunConfig
from astraflow_core.types import Batch, RunInfo
from astraflow_runtime.hooks import Hooks
from astraflow_runtime.trainer.publishing import Versions
from astraflow_runtime.trainer.service import TrainerService
from astraflow_runtime.trainer.upstream import DataflowClient
from bench.simulation.ledger import Ledger
from bench.simulation.network import FaultyNetwork, SimulatedSyncClient
from bench.simulation.virtual_loop import run_blocking, wait_for

STEP_S = 0.5


class ToyOperations:
    """Counts updates. Stands for :class:`astraflow_runtime.trainer.operations.Operations`."""

    weights_kind = "full"

    def __init__(self, ledger: Ledger, rng: random.Random) -> None:
        self.updates = 0
        self._ledger, self._rng = ledger, rng

    def meet(self) -> None:
        """Does nothing: there are no other ranks."""

    def set_up(self, checkpoint: Path | None) -> None:
        """Begin, or go on."""
        if checkpoint is not None:
            self.updates = json.loads((checkpoint / "state.json").read_text())

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """Make an update."""
        wait_for(asyncio.sleep(self._rng.expovariate(1 / STEP_S)))
        assert step == self.updates, "the state is not that of the update"
        self._ledger.train(batch, step, asyncio.get_running_loop().time())
        self.updates += 1
        return {"loss": 0.0}

    def export(self) -> Iterator[Any]:
        """The weights."""
        return iter((self.updates,))

    def save(self, folder: Path) -> None:
        """Write the state."""
        (folder / "state.json").write_text(json.dumps(self.updates))

    def finish_save(self, wait: bool) -> bool:
        """It is written at once."""
        return True

    def save_model(self, folder: Path) -> None:
        """Write the model."""
        (folder / "model.json").write_text(json.dumps(self.updates))

    def take_devices(self, ours: bool) -> None:
        """It has none."""

    def close(self) -> None:
        """Nothing to free."""


class ToyTransport:
    """Publishes numbers of updates to the ledger."""

    endpoints = ("http://simulated",)

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._numbers = ledger, ledger.publications

    def publisher(self) -> ToyTransport:
        """Itself."""
        return self

    def publish(self, version: int, tensors: Iterator[int], derives_from: int | None = None) -> Any:
        """Note it."""
        digest = f"{next(tensors)} updates, published as number {next(self._numbers)}"
        self._ledger.publish(version, digest)
        return SimpleNamespace(digest=digest, size=8)

    def retain(self, versions: frozenset[int]) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing to stop."""


class _AtOnce:
    """An executor without a thread."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future

    def shutdown(self, **_: Any) -> None:
        """Nothing runs."""


class TrainerProcess:
    """A trainer from its start until it exits or is killed."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        network: FaultyNetwork,
        ledger: Ledger,
        rng: random.Random,
    ) -> None:
        run = config.run
        client = SimulatedSyncClient(network, "trainer")
        dataflow = DataflowClient(client, "solver", run.give_up_after_s)
        transport: Any = ToyTransport(ledger)
        operations: Any = ToyOperations(ledger, rng)
        self.service = TrainerService(
            config,
            RunInfo(run.name, run.seed, run.steps, run.max_staleness, ("solver",), folder, ()),
            "solver",
            operations,
            Versions(transport, "toy", dataflow, folder),
            dataflow,
            Hooks(()),
        )
        sealer: Any = _AtOnce()
        self.service._checkpoints._sealer = sealer

    async def run(self) -> None:
        """Run until it ends."""
        await run_blocking(self.service.run)
