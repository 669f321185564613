"""The loop of a trainer: batch, update, publish, acknowledge."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from astraflow_core.config.models import PolicyTable, RunConfig
from astraflow_core.device_turn import FOLDER, DeviceTurn
from astraflow_core.errors import AstraFlowError, NonFiniteLoss, NoRoom
from astraflow_core.hooks import Hooks
from astraflow_core.trainer.bad_batches import keep_batch
from astraflow_core.trainer.channel import RankLost
from astraflow_core.trainer.checkpoints import Checkpoints
from astraflow_core.trainer.final_models import leave_folder, with_patience
from astraflow_core.trainer.operations import Operations
from astraflow_core.trainer.publishing import Versions
from astraflow_core.trainer.saving import Saving
from astraflow_core.trainer.upstream import Dataflow
from astraflow_core.types import Batch, RunInfo
from astraflow_core.wire.batches import NoBatch
from astraflow_core.wire.messages import TrainerRegistered

log = logging.getLogger(__name__)

MOST_SKIPPED = 10
"""Batches in a row whose loss is not finite: after so many the weights must be at fault."""


class TrainerService:
    """Drives one trainer until the dataflow has no more batches, or until :attr:`stop` is set."""

    def __init__(
        self,
        config: RunConfig,
        run: RunInfo,
        policy: str,
        operations: Operations,
        versions: Versions,
        dataflow: Dataflow,
        hooks: Hooks,
        reshards: bool = False,
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
        self._updates = 0
        self._waited_s = 0.0
        self._best_version = -1
        self._probed = 0
        self._skipped = 0
        self.stop = threading.Event()

    def run(self) -> None:
        """Everything from the first version to the model that is left at the end. A trainer that was
        killed goes on from its last checkpoint: its first version gets the next free number."""
        saved = self._checkpoints.sound()
        registered = self._dataflow.register([0, *saved], self._config.run.start_deadline_s)
        self._updates = registered.updates
        self._checkpoints.forget_after(self._updates)
        self._begin(registered)
        batch: Batch | None = None
        try:
            while (batch := self._wait_for_batch()) is not None:
                self._train(batch)
        except NonFiniteLoss as error:
            self._dataflow.failed(error, _name(batch))
            raise NonFiniteLoss(f"{error}; {self._leave_weights_before()}") from error
        except RankLost:
            raise  # no fault of the run: the group is started again
        except AstraFlowError as error:
            self._dataflow.failed(error, _name(batch))
            raise
        self._finish()

    def _finish(self) -> None:
        """Save the last state and leave the model; where there is no room for one, there may be for the other."""
        allowed = self._config.run.deadline_s
        # Once rank 0 has given up, others wait in a collective: they are all started again.
        again = allowed if self._table.trainer.ranks == 1 else 0.0
        full: NoRoom | None = None
        try:
            with_patience(
                lambda: self._saving.finish(self._updates, self._versions.newest), allowed
            )
        except NoRoom as error:
            full = error
        with_patience(self._leave_models, again)
        if full is not None:
            raise full

    def _begin(self, registered: TrainerRegistered) -> None:
        try:
            with self._devices():
                self._set_up(self._checkpoints.chosen(self._updates))
                self._publish(registered.highest_version + 1)
        except RankLost:
            raise
        except AstraFlowError as error:
            if (
                self._table.trainer.ranks > 1
            ):  # of several processes nobody sees which one said what
                self._dataflow.failed(error)
            raise

    @contextlib.contextmanager
    def _devices(self) -> Iterator[None]:
        """The devices, which engines let go of if they share them; so does the trainer afterwards, if it can."""
        run = self._config.run
        if not run.colocated:
            yield
            return
        turn = DeviceTurn(self._run.directory / "state" / FOLDER, f"trainer-{self._policy}")
        with turn.alone(max(run.patience_s, run.start_deadline_s + run.episode_deadline_s)):
            self._operations.take_devices(True)
            yield
            self._operations.take_devices(False)

    def _set_up(self, checkpoint: Path | None) -> None:
        self._operations.set_up(checkpoint)
        if checkpoint is not None:
            self._saving.begin_with(self._updates)
            log.info("going on from %s", checkpoint)

    def _wait_for_batch(self) -> Batch | None:
        started = time.monotonic()
        while not self.stop.is_set():
            answer = self._dataflow.next_batch(self._versions.newest)
            if isinstance(answer, Batch):
                self._waited_s = time.monotonic() - started
                return answer
            if answer.ended:
                self._note_end(answer)
                return None
            self._saving.look(self._updates, self._versions.newest)
        log.info("stopping after %d updates", self._updates)
        return None

    def _note_end(self, answer: NoBatch) -> None:
        self._best_version = answer.best_version
        log.info("no more batches after %d updates: %s", self._updates, answer.reason)

    def _train(self, batch: Batch) -> None:
        step = self._updates

        def call() -> dict[str, float]:
            try:
                return self._operations.update(batch, step)
            except NonFiniteLoss as error:
                return self._after_nonfinite(error, batch)

        with self._devices():
            metrics = dict(self._hooks.train_step(self._run, step, batch, call))
            self._updates += 1
            metrics["wait_s"] = self._waited_s
            metrics["checkpoint_s"] = self._saving.take_stall_s()
            if self._updates % self._table.publish_every == 0 or self._updates == self._run.steps:
                metrics["publish_s"] = self._publish(self._versions.newest + 1, batch)
        acknowledged = self._dataflow.acknowledge(batch.id, self._versions.newest, metrics)
        self._versions.retain(acknowledged.retain)
        self._hooks.step_ended(self._run, self._updates, metrics)
        if "skipped" not in metrics:
            self._skipped = 0
        if acknowledged.stop:
            self.stop.set()
        self._saving.after_update(self._updates, self._versions.newest)

    def _publish(self, version: int, batch: Batch | None = None) -> float:
        """Publish, with a probe of the rows of ``batch`` if one is due."""
        every, asked = self._config.run.probe_every, None
        if every and batch is not None and self._updates - self._probed >= every:
            asked, self._probed = self._operations.probe(batch), self._updates
        seconds = self._versions.publish(self._operations, version, asked)
        self._hooks.weights_published(self._run, self._policy, version)
        return seconds

    def _after_nonfinite(self, error: NonFiniteLoss, batch: Batch) -> dict[str, float]:
        """Keep the batch, and go on without an update from it if that is wanted and has not happened too often
        in a row."""
        kept = keep_batch(self._run.directory, batch)
        self._skipped += 1
        problem = NonFiniteLoss(f"{error} in batch {batch.id}; {kept}")
        if self._config.run.on_nonfinite == "stop" or self._skipped > MOST_SKIPPED:
            raise problem from error
        log.warning("%s; it is left out", problem)
        return {"skipped": 1.0}

    def _model_folder(self, suffix: str = "") -> Path:
        return self._run.directory / "models" / f"{self._policy}{suffix}"

    def _leave_models(self) -> None:
        """The last weights as a Hugging Face folder, and the best version's if that is another."""
        leave_folder(self._model_folder(), self._operations.save_model)
        if self._best_version not in (-1, self._versions.newest):
            leave_folder(self._model_folder("-best"), self._write_best)

    def _write_best(self, folder: Path) -> None:
        self._operations.save_model(folder)
        self._versions.write(self._best_version, folder, self._config.run.deadline_s)

    def _leave_weights_before(self) -> str:
        """Where they are."""
        try:
            self._leave_models()
        except NoRoom as error:
            return f"there is no room for the weights before that step: {error}"
        return f"the weights before that step are in {self._model_folder()}"


def _name(batch: Batch | None) -> str:
    return "" if batch is None else batch.id
