"""The loop of a trainer: batch, update, publish, acknowledge."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from astraflow_core.config.models import PolicyTable, RunConfig
from astraflow_core.errors import AstraFlowError, NonFiniteLoss, NoRoom, Refused
from astraflow_core.types import Batch, RunInfo
from astraflow_runtime.device_turn import FOLDER, SharedDeviceLock
from astraflow_runtime.hooks import Hooks
from astraflow_runtime.trainer.checkpoints.final_models import leave_folder, retry_until
from astraflow_runtime.trainer.checkpoints.saving import Saving
from astraflow_runtime.trainer.checkpoints.store import Checkpoints
from astraflow_runtime.trainer.operations import Operations
from astraflow_runtime.trainer.publishing import Versions
from astraflow_runtime.trainer.ranks.channel import RankLost
from astraflow_runtime.trainer.recovery import Recovered, Recovery
from astraflow_runtime.trainer.updates.bad_batches import keep_batch
from astraflow_runtime.trainer.updates.misfits import without_misfits
from astraflow_runtime.trainer.upstream import DataflowClient, DataflowSilent
from astraflow_wire.batches import NoBatch
from astraflow_wire.host.disk import LONGEST_WAIT_S
from astraflow_wire.messages import TrainerRegistered
from astraflow_wire.model_files.model_limits import ModelLimits

log = logging.getLogger(__name__)

MOST_SKIPPED = 10
"""Consecutive batches with a non-finite loss after which the weights must be the cause."""


class TrainerService:
    """Drives one trainer until the dataflow has no more batches, or until :attr:`stop` is set."""

    def __init__(
        self,
        config: RunConfig,
        run: RunInfo,
        policy: str,
        operations: Operations,
        versions: Versions,
        dataflow: DataflowClient,
        hooks: Hooks,
        reshards: bool = False,
        recovery: Recovery | None = None,
    ) -> None:
        self._config, self._run, self._policy = config, run, policy
        self._table: PolicyTable = config.policies[policy]
        self._operations = operations
        self._versions, self._dataflow, self._hooks = versions, dataflow, hooks
        self._checkpoints = Checkpoints(
            run.directory / "checkpoints" / policy,
            policy,
            keep=config.checkpoint.keep,
            trainer=self._table.trainer.use,
            ranks=self._table.trainer.ranks,
            reshards=reshards,
        )
        self._saving = Saving(self._checkpoints, operations, dataflow, config.checkpoint)
        self._recovery = recovery
        self._updates = 0
        self._waited_s = 0.0
        self._best_version = -1
        self._probed = 0
        self._skipped = 0
        self._lost: DataflowSilent | None = None
        self._limits = ModelLimits.of(Path(self._table.model))
        self._left_out = 0
        self.stop = threading.Event()
        dataflow.given_up = self.stop.is_set

    def run(self) -> None:
        """Train from the first version to the final model. A killed trainer continues from its last
        checkpoint: its first version gets the next free number.
        """
        try:
            self._begin()
        except DataflowSilent as error:
            if not self.stop.is_set():
                raise
            log.warning("%s; no update was made", error)
            return
        batch: Batch | None = None
        try:
            while (batch := self._wait_for_batch()) is not None:
                self._train(batch)
        except NonFiniteLoss as error:
            self._dataflow.failed(error, _name(batch))
            raise NonFiniteLoss(f"{error}; {self._copy_previous_weights()}") from error
        except DataflowSilent as error:
            log.error("%s; the state after %d updates is saved", error, self._updates)
            self._lost = error
        except RankLost:
            raise  # not an error of the run: the group is restarted
        except AstraFlowError as error:
            self._dataflow.failed(error, _name(batch))
            raise
        self._finish()
        if self._lost is not None and not self.stop.is_set():
            raise self._lost

    def _finish(self) -> None:
        """Save the last state and the final model, even if the dataflow is gone; the disk may have
        room for one of them only.
        """
        alone, allowed = self._table.trainer.ranks == 1, self._config.run.deadline_s
        longest = allowed if self.stop.is_set() else LONGEST_WAIT_S
        full = False
        try:
            retry_until(self._save_last, allowed if alone else longest)
        except NoRoom as error:
            log.warning("%s; writing the model first", error)
            full = True
        # After a failure of rank 0 the others wait in a collective: all are restarted.
        retry_until(self._export_models, longest if alone else 0.0)
        if full:
            retry_until(self._save_last, longest)
        if self._lost is None:
            self._saving.leave(self._updates, self._updates >= self._run.steps)

    def _save_last(self) -> None:
        self._saving.finish(self._updates, self._versions.newest)

    def _begin(self) -> None:
        with self._reporting_failure():  # a rank that fails before the others have connected reports it without an incarnation, which is valid until then
            self._operations.meet()
        saved = [0, *self._checkpoints.sound()]
        start_s = self._config.run.start_deadline_s
        try:
            registered = self._dataflow.register(saved, start_s)
        except Refused as error:
            if self._recovery is None or error.status != HTTPStatus.CONFLICT:
                raise
            with self._recovery.found(error) as recovered:
                registered = self._dataflow.register(saved, start_s, recovered.version)
                self._continue_after(registered, recovered)
            return
        self._continue_after(registered)

    def _continue_after(
        self, registered: TrainerRegistered, recovered: Recovered | None = None
    ) -> None:
        """Load the state after the updates that the dataflow names, and publish it. If the weights
        are ``recovered``, the last checkpoint before has the rest, if there is one.
        """
        self._updates = registered.updates
        self._checkpoints.forget_after(self._updates)
        with self._reporting_failure(), self._devices():
            if recovered is None:
                self._set_up(self._checkpoints.chosen(self._updates))
            else:
                self._adopt(recovered)
            self._publish(registered.highest_version + 1)

    def _adopt(self, recovered: Recovered) -> None:
        before = max(self._checkpoints.sound(), default=0)
        self._operations.set_up(self._checkpoints.chosen(before))
        self._operations.adopt(recovered.folder, self._updates)
        log.info(
            "continuing after update %d with the weights of version %d; the state of the optimizer %s",
            self._updates,
            recovered.version,
            f"is that after update {before}" if before else "begins anew",
        )

    @contextlib.contextmanager
    def _reporting_failure(self) -> Iterator[None]:
        """Report to the dataflow why a trainer of several ranks cannot start."""
        try:
            yield
        except RankLost:
            raise
        except AstraFlowError as error:
            if (
                self._table.trainer.ranks > 1
            ):  # the output of several processes does not show which one failed
                self._dataflow.failed(error)
            raise

    @contextlib.contextmanager
    def _devices(self) -> Iterator[None]:
        """Acquire the devices from colocated engines, and release them afterwards if the trainer
        can sleep.
        """
        run = self._config.run
        if not run.colocated:
            yield
            return
        turn = SharedDeviceLock(self._run.directory / "state" / FOLDER, f"trainer-{self._policy}")
        with turn.exclusive(
            max(run.give_up_after_s, run.start_deadline_s + run.episode_deadline_s)
        ):
            self._operations.take_devices(True)
            yield
            self._operations.take_devices(False)

    def _set_up(self, checkpoint: Path | None) -> None:
        self._operations.set_up(checkpoint)
        if checkpoint is not None:
            self._saving.begin_with(self._updates)
            log.info("continuing from %s", checkpoint)

    def _wait_for_batch(self) -> Batch | None:
        started = time.monotonic()
        while not self.stop.is_set():
            answer = self._dataflow.next_batch(self._versions.newest)
            if isinstance(answer, Batch):
                self._waited_s = time.monotonic() - started
                fitting = without_misfits(answer, self._limits)
                self._left_out = len(answer) - len(fitting)
                return fitting
            if answer.ended:
                self._record_end(answer)
                return None
            self._saving.look(self._updates, self._versions.newest)
        log.info("stopping after %d updates", self._updates)
        return None

    def _record_end(self, answer: NoBatch) -> None:
        self._best_version = answer.best_version
        log.info("no more batches after %d updates: %s", self._updates, answer.reason)

    def _train(self, batch: Batch) -> None:
        step = self._updates

        def call() -> dict[str, float]:
            if not len(batch):
                return {"skipped": 1.0}
            try:
                return self._operations.update(batch, step)
            except NonFiniteLoss as error:
                return self._after_nonfinite(error, batch)

        with self._devices():
            metrics = dict(self._hooks.train_step(self._run, step, batch, call))
            self._updates += 1
            if self._left_out:
                metrics["rows_left_out"] = self._left_out
            metrics["wait_s"] = self._waited_s
            metrics["checkpoint_s"] = self._saving.take_stall_s()
            if self._updates % self._table.publish_every == 0 or self._updates == self._run.steps:
                metrics["publish_s"] = self._publish(self._versions.newest + 1, batch)
                metrics |= self._versions.figures
        acknowledged = self._dataflow.acknowledge(batch.id, self._versions.newest, metrics)
        self._versions.retain(acknowledged.retain)
        self._hooks.step_ended(self._run, self._updates, metrics)
        if "skipped" not in metrics:
            self._skipped = 0
        if acknowledged.stop:
            self.stop.set()
        self._saving.after_update(self._updates, self._versions.newest)

    def _publish(self, version: int, batch: Batch | None = None) -> float:
        """Publish, with a probe of rows of ``batch`` if the interval has passed."""
        every, asked = self._config.run.probe_every, None
        if every and batch and self._updates - self._probed >= every:
            asked, self._probed = self._operations.probe(batch, version), self._updates
        seconds = self._versions.publish(self._operations, version, asked)
        self._hooks.weights_published(self._run, self._policy, version)
        return seconds

    def _after_nonfinite(self, error: NonFiniteLoss, batch: Batch) -> dict[str, float]:
        """Keep the batch for inspection, and skip its update if the configuration allows it and not
        too many consecutive ones were skipped.
        """
        kept = keep_batch(self._run.directory, batch)
        self._skipped += 1
        problem = NonFiniteLoss(f"{error} in batch {batch.id}; {kept}")
        if self._config.run.on_nonfinite == "stop" or self._skipped > MOST_SKIPPED:
            raise problem from error
        log.warning("%s; it is skipped", problem)
        return {"skipped": 1.0}

    def _model_folder(self, suffix: str = "") -> Path:
        return self._run.directory / "models" / f"{self._policy}{suffix}"

    def _export_models(self) -> None:
        """Write the last weights as a Hugging Face folder, and the best version's if that is
        another.
        """
        leave_folder(self._model_folder(), self._operations.save_model)
        if self._best_version not in (-1, self._versions.newest):
            leave_folder(self._model_folder("-best"), self._write_best)

    def _write_best(self, folder: Path) -> None:
        self._operations.save_model(folder)
        self._versions.write(self._best_version, folder, self._config.run.deadline_s)

    def _copy_previous_weights(self) -> str:
        """Returns where they are."""
        try:
            self._export_models()
        except NoRoom as error:
            return f"there is no disk space for the weights before that step: {error}"
        return f"the weights before that step are in {self._model_folder()}"


def _name(batch: Batch | None) -> str:
    return "" if batch is None else batch.id
