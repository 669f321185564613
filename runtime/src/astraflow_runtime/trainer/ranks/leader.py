"""The operations of a trainer of several ranks, led by rank 0."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from astraflow_core.config.models import RunConfig
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.protocols.trainer import Trainer
from astraflow_core.protocols.transport import ShardPublisher
from astraflow_core.types import Batch, ExportedTensor, Manifest
from astraflow_runtime.trainer.operations import Operations
from astraflow_runtime.trainer.ranks.channel import RankLost, RankZeroChannel
from astraflow_runtime.trainer.ranks.rank_commands import (
    AdoptCommand,
    Export,
    FinishSave,
    Order,
    ProbeLast,
    PublishShards,
    RetainShards,
    Save,
    SaveModel,
    SetUp,
    TakeDevices,
    UpdateCommand,
)
from astraflow_wire.batches import encode_batch
from astraflow_wire.messages import Probe


class Leader(Operations):
    """Sends every operation to the other ranks, takes part in it, and waits until all have
    completed it. ``incarnation`` is that of this trainer once it has registered: other ranks use it
    to report failures when rank 0 cannot.
    """

    def __init__(
        self,
        config: RunConfig,
        policy: str,
        trainer: Trainer,
        algorithm: Algorithm,
        hub: RankZeroChannel,
        saves_later: bool = False,
        shards: ShardPublisher | None = None,
        sleeps: bool = False,
        incarnation: Callable[[], int] = int,
    ) -> None:
        super().__init__(config, policy, trainer, algorithm, hub.share, saves_later, shards, sleeps)
        self._hub, self._incarnation = hub, incarnation
        self._all_hold = True

    def meet(self) -> None:
        """See :class:`Operations`."""
        self._hub.meet()

    def set_up(self, checkpoint: Path | None) -> None:
        """See :class:`Operations`; waits for all ranks first."""
        self.meet()
        with self._on_all(SetUp(str(checkpoint or ""), self._incarnation())):
            super().set_up(checkpoint)

    def adopt(self, model: Path, updates: int) -> None:
        """See :class:`Operations`; ``model`` is in the run directory, which all ranks see."""
        with self._on_all(AdoptCommand(str(model), updates)):
            super().adopt(model, updates)

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """See :class:`Operations`; each rank gets the batch as the dataflow sent it."""
        with self._on_all(UpdateCommand(step), encode_batch(batch)):
            return super().update(batch, step)

    def probe(self, batch: Batch, version: int) -> Probe | None:
        """See :class:`Operations`."""
        with self._on_all(ProbeLast(version)):
            return super().probe(batch, version)

    def export(self) -> Iterator[ExportedTensor]:
        """See :class:`Operations`."""
        with self._on_all(Export()):
            yield from super().export()

    def publish_shards(self, version: int, derives_from: int | None) -> Manifest:
        """See :class:`Operations`."""
        with self._on_all(PublishShards(version, derives_from)):
            manifest = super().publish_shards(version, derives_from)
        return manifest

    def retain_shards(self, versions: frozenset[int]) -> None:
        """See :class:`Operations`."""
        with self._on_all(RetainShards(sorted(versions))):
            super().retain_shards(versions)

    def save(self, folder: Path) -> None:
        """See :class:`Operations`."""
        with self._on_all(Save(str(folder))):
            super().save(folder)

    def finish_save(self, wait: bool) -> bool:
        """See :class:`Operations`: on all ranks."""
        if self._saves_later is None:
            return True
        with self._on_all(FinishSave(wait)):
            mine = super().finish_save(wait)
        return mine and self._all_hold

    def save_model(self, folder: Path) -> None:
        """See :class:`Operations`."""
        with self._on_all(SaveModel(str(folder))):
            super().save_model(folder)

    def take_devices(self, ours: bool) -> None:
        """See :class:`Operations`: on all ranks."""
        if self._sleeper is not None:
            with self._on_all(TakeDevices(ours)):
                super().take_devices(ours)

    def close(self) -> None:
        """See :class:`Operations`."""
        self._hub.close()
        super().close()

    @contextlib.contextmanager
    def _on_all(self, order: Order, body: bytes = b"") -> Iterator[None]:
        self._hub.broadcast(order, body)
        try:
            yield
        except RankLost:
            raise
        except Exception as error:
            self._hub.handle_failure(error)
            raise
        self._all_hold = self._hub.gather()
