"""A rank of a trainer other than rank 0: it carries out the commands of rank 0."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from astraflow_core.errors import AstraFlowError, NonFiniteLoss, RunFailed, UserError
from astraflow_core.types import Batch, Ranks
from astraflow_runtime.trainer.culprit import Owner, describe
from astraflow_runtime.trainer.operations import Operations
from astraflow_runtime.trainer.ranks.channel import Abandoned, RankChannel
from astraflow_runtime.trainer.ranks.rank_commands import (
    AdoptCommand,
    CommandDone,
    CommandFailed,
    End,
    Export,
    FinishSave,
    Left,
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
from astraflow_runtime.trainer.upstream import DataflowClient
from astraflow_wire.batches import decode_batch

log = logging.getLogger(__name__)


class Follower:
    """Takes part in every operation until rank 0 ends. ``dataflow`` is called only to report this
    rank as the cause of a failure when rank 0 cannot. ``owners``: the components whose code may
    raise.
    """

    def __init__(
        self,
        spoke: RankChannel,
        operations: Operations,
        dataflow: DataflowClient,
        ranks: Ranks,
        owners: Sequence[Owner] = (),
    ) -> None:
        self._spoke, self._operations, self._owners = spoke, operations, owners
        self._dataflow, self._ranks = dataflow, ranks
        self._last: Batch | None = None

    def run(self) -> None:
        """Carry out commands. Any error except a non-finite loss ends this rank."""
        self._spoke.meet()
        while True:
            order, body = self._spoke.order()
            if isinstance(order, End):
                self._spoke.answer(Left())
                return
            try:
                holds = self._perform(order, body)
            except Abandoned:
                self._spoke.answer(CommandDone(holds=False))
            except NonFiniteLoss as error:
                self._spoke.answer(CommandFailed(str(error), not_finite=True))
            except Exception as error:
                self._fail(error)
                raise
            else:
                self._spoke.answer(CommandDone(holds))

    def close(self) -> None:
        """Leave the channel and free everything."""
        self._spoke.close()
        self._operations.close()

    def _perform(self, order: Order, body: bytes) -> bool:
        match order:
            case SetUp(checkpoint, incarnation):
                self._dataflow.incarnation = incarnation
                self._operations.set_up(Path(checkpoint) if checkpoint else None)
            case AdoptCommand(folder, updates):
                self._operations.adopt(Path(folder), updates)
            case UpdateCommand(step):
                batch = decode_batch(body)
                assert isinstance(batch, Batch)
                self._last = batch
                self._operations.update(batch, step)
            case ProbeLast(version):
                assert self._last is not None, "rank 0 probes a batch that was trained on"
                self._operations.probe(self._last, version)
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
            error = RunFailed(describe(error, self._owners))
        self._spoke.answer(CommandFailed(str(error), user=isinstance(error, UserError)))
        if not self._spoke.failure_handled():
            self._dataflow.failed(error, who=f"rank {self._ranks.rank}")
