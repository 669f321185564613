"""The operations of a trainer. Every rank does the same, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from astraflow_core.config.models import RunConfig
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.protocols.trainer import (
    AdoptsWeights,
    ExportsShards,
    GivesLogitGradients,
    SavesLater,
    Sleeps,
    Trainer,
)
from astraflow_core.protocols.transport import ShardPublisher
from astraflow_core.types import Batch, ExportedTensor, Manifest
from astraflow_runtime.trainer.updates.probe import Prober
from astraflow_runtime.trainer.updates.update import UpdateListener, update
from astraflow_wire.host.process import freeze_gc_after_startup
from astraflow_wire.messages import Probe

Floats = npt.NDArray[np.float32]


class Operations:
    """The operations on one process. ``agree`` makes the per-token results of all ranks those of
    rank 0, so that each continues with the same bytes; with one rank they are unchanged.
    ``saves_later``: the trainer has the capability ``async_save``. ``shards``: where this rank
    publishes its own blocks, if it does. ``sleeps``: the trainer has the capability ``sleep``."""

    listener: UpdateListener | None = None
    """Gets each update."""

    def __init__(
        self,
        config: RunConfig,
        policy: str,
        trainer: Trainer,
        algorithm: Algorithm,
        agree: Callable[[Floats], Floats] = lambda given: given,
        saves_later: bool = False,
        shards: ShardPublisher | None = None,
        sleeps: bool = False,
    ) -> None:
        self._run, self._table = config.run, config.policies[policy]
        self._trainer, self._algorithm = trainer, algorithm
        self._saves_later = cast(SavesLater, trainer) if saves_later else None
        self._shards = shards
        self._sleeper = cast(Sleeps, trainer) if sleeps else None
        self._asleep = False
        self._agreed = _Agreed(trainer, agree)
        self._prober = Prober()

    @property
    def weights_kind(self) -> str:
        """``"full"``, or ``"adapter"`` if the trainer exports one."""
        return str(getattr(self._trainer, "weights_kind", "full"))

    def meet(self) -> None:
        """Wait until every rank has connected."""

    def set_up(self, checkpoint: Path | None) -> None:
        """Load the model, and continue from ``checkpoint`` if there is one."""
        with freeze_gc_after_startup():
            self._trainer.setup(
                Path(self._table.model),
                total_steps=self._run.steps * self._table.mini_batches,
                needs=self._algorithm.needs,
            )
        if checkpoint is not None:
            self._trainer.load(checkpoint)

    def adopt(self, model: Path, updates: int) -> None:
        """Continue with the weights of another folder after that many updates; only of a trainer with
        the capability ``adopt``.
        """
        cast(AdoptsWeights, self._trainer).adopt(model, updates * self._table.mini_batches)

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """Train on a batch; returns the metrics."""
        return update(
            batch,
            self._agreed,
            self._algorithm,
            parts=self._table.mini_batches,
            seed=self._run.seed,
            step=step,
            listener=self.listener,
        )

    def probe(self, batch: Batch, version: int) -> Probe | None:
        """The trainer's log-probs of a few rows of the last batch, under the weights that become ``version``."""
        return self._prober.probe(self._agreed, batch, version)

    def export(self) -> Iterator[ExportedTensor]:
        """The current weights."""
        return self._trainer.export()

    def publish_shards(self, version: int, derives_from: int | None) -> Manifest:
        """Publish this rank's blocks of the current weights."""
        assert self._shards is not None, "this trainer publishes whole tensors"
        exporter = cast(ExportsShards, self._trainer)
        return self._shards.publish(version, exporter.export_shards, derives_from)

    def retain_shards(self, versions: frozenset[int]) -> None:
        """Release all versions of this rank except the newest and these."""
        assert self._shards is not None, "this trainer publishes whole tensors"
        self._shards.retain(versions)

    def save(self, folder: Path) -> None:
        """Write the whole state, or begin to write it (:meth:`finish_save`)."""
        self._trainer.save(folder)

    def finish_save(self, wait: bool) -> bool:
        """Whether everything that :meth:`save` began is written; ``wait`` waits for it."""
        return self._saves_later is None or self._saves_later.finish_save(wait)

    def save_model(self, folder: Path) -> None:
        """Write a Hugging Face folder."""
        self._trainer.save_model(folder)

    def take_devices(self, ours: bool) -> None:
        """Acquire the devices, or release them to the engines; a no-op for a trainer that cannot
        sleep.
        """
        if self._sleeper is None or ours != self._asleep:
            return
        if ours:
            self._sleeper.wake()
        else:
            self._sleeper.sleep()
        self._asleep = not ours

    def close(self) -> None:
        """Free everything."""
        self._trainer.close()
        if self._shards is not None:
            self._shards.close()


class _Agreed:
    """Wraps a trainer so that its results are the same on every rank."""

    def __init__(self, trainer: Trainer, agree: Callable[[Floats], Floats]) -> None:
        self._trainer, self._agree = trainer, agree
        self.proximal_in_step = bool(getattr(trainer, "proximal_in_step", False))

    @property
    def reference_is_current(self) -> bool:
        return bool(getattr(self._trainer, "reference_is_current", False))

    def logprobs(self, batch: Batch, model: Literal["current", "reference"]) -> Floats:
        return self._agree(self._trainer.logprobs(batch, model))

    def values(self, batch: Batch) -> Floats:
        return self._agree(self._trainer.values(batch))

    def logit_gradients(self, batch: Batch) -> Floats:
        trainer = cast(GivesLogitGradients, self._trainer)
        return self._agree(trainer.logit_gradients(batch))

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        return self._trainer.step(batch, algorithm, step)

    def step_logprobs(self) -> Floats | None:
        own: Floats | None = getattr(self._trainer, "step_logprobs", lambda: None)()
        return own

    def step_entropies(self) -> Floats | None:
        own: Floats | None = getattr(self._trainer, "step_entropies", lambda: None)()
        return own
