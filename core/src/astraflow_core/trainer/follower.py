"""A rank of a trainer that is not the first: it does what rank 0 does."""

from __future__ import annotations

import logging
from pathlib import Path

from astraflow_core.errors import AstraFlowError, NonFiniteLoss, RunFailed, UserError
from astraflow_core.trainer.channel import Abandoned, Spoke
from astraflow_core.trainer.operations import Operations
from astraflow_core.trainer.orders import (
    Done,
    End,
    Export,
    Failed,
    FinishSave,
    Order,
    ProbeLast,
    PublishShards,
    RetainShards,
    Save,
    SaveModel,
    SetUp,
    TakeDevices,
    Update,
)
from astraflow_core.trainer.upstream import Dataflow
from astraflow_core.types import Batch, Ranks
from astraflow_core.wire.batches import decode_batch

log = logging.getLogger(__name__)


class Follower:
    """Takes part in every operation until rank 0 says that it was the last. ``dataflow`` is spoken to only to
    name this rank as the cause of a failure when rank 0 cannot."""

    def __init__(
        self, spoke: Spoke, operations: Operations, dataflow: Dataflow, ranks: Ranks
    ) -> None:
        self._spoke, self._operations = spoke, operations
        self._dataflow, self._ranks = dataflow, ranks
        self._last: Batch | None = None

    def run(self) -> None:
        """Serve orders. An error other than a loss that is not finite ends this rank."""
        self._spoke.meet()
        while True:
            order, body = self._spoke.order()
            if isinstance(order, End):
                self._spoke.answer(Done())
                return
            try:
                holds = self._perform(order, body)
            except Abandoned:
                self._spoke.answer(Done(holds=False))
            except NonFiniteLoss as error:
                self._spoke.answer(Failed(str(error), not_finite=True))
            except Exception as error:
                self._fail(error)
                raise
            else:
                self._spoke.answer(Done(holds))

    def close(self) -> None:
        """Leave the channel and free everything."""
        self._spoke.close()
        self._operations.close()

    def _perform(self, order: Order, body: bytes) -> bool:
        match order:
            case SetUp(checkpoint):
                self._operations.set_up(Path(checkpoint) if checkpoint else None)
            case Update(step):
                batch = decode_batch(body)
                assert isinstance(batch, Batch)
                self._last = batch
                self._operations.update(batch, step)
            case ProbeLast():
                assert self._last is not None, "rank 0 probes a batch that was trained on"
                self._operations.probe(self._last)
            case Export():
                for _ in self._operations.export():
                    pass
            case PublishShards(version, derives_from):
                self._operations.publish_shards(version, derives_from)
            case RetainShards(versions):
                self._operations.retain_shards(frozenset(versions))
            case Save(folder):
                self._operations.save(Path(folder))
            case FinishSave(wait):
                return self._operations.finish_save(wait)
            case SaveModel(folder):
                self._operations.save_model(Path(folder))
            case TakeDevices(ours):
                self._operations.take_devices(ours)
        return True

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, AstraFlowError):
            error = RunFailed(f"{type(error).__name__}: {error}")
        self._spoke.answer(Failed(str(error), user=isinstance(error, UserError)))
        if not self._spoke.heard():
            self._dataflow.failed(error, who=f"rank {self._ranks.rank}")
