"""One model that a client trains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from astraflow_contrib_tinker.wire.datums import GradientRequest
from astraflow_contrib_tinker.wire.results import GradientResult
from astraflow_contrib_tinker.work.access import FairTurns
from astraflow_contrib_tinker.work.base import BaseModel
from astraflow_contrib_tinker.work.exported import write_adapter
from astraflow_contrib_tinker.work.futures import Promise
from astraflow_contrib_tinker.work.kept import KeptModel, Outcome
from astraflow_contrib_tinker.work.losses import LOSSES, prepared
from astraflow_contrib_tinker.work.ordering import Ordered
from astraflow_contrib_tinker.work.rows import rows_of
from astraflow_contrib_tinker.work.store import Kind
from astraflow_core.errors import NonFiniteLoss, Refused
from astraflow_core.protocols.trainer import AccumulatesGradients, AdamWStep, Trainer

T = TypeVar("T")


class TrainingThread:
    """One thread for all trainers: a step of one model after that of another, in turns that are fair between keys."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "tinker-training")
        self._turns = FairTurns(1)

    async def do(self, work: Callable[..., T], *given: Any) -> T:
        """The result of ``work``."""
        async with self._turns.turn():
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)

    def close(self) -> None:
        """End when the work of now is done."""
        self._thread.shutdown(wait=True, cancel_futures=True)


@dataclass
class TrainedModel:
    """A model of a session. Its methods but :meth:`open` are called in the thread of :class:`TrainingThread`."""

    id: str
    session: str
    base: BaseModel
    lora_rank: int
    seed: int
    order: Ordered
    metadata: dict[str, str] = field(default_factory=dict)
    updates: int = 0
    last_request: float = field(default_factory=time.time)
    creation: Promise | None = None
    kept: KeptModel | None = None
    held: bool = False
    """Whether it holds a gradient, which no state has."""
    loaded: bool = False
    """Whether it was given other weights since its last state."""
    _trainer: Trainer | None = None

    def open(self, state: Path | None = None, optimizer: bool = True) -> None:
        """Load the base model, with fresh adapters if it has any, or a state."""
        self._trainer = self.base.build_trainer(self.lora_rank, self.seed)
        if state is not None:
            self.load_state(state, optimizer)
            self.loaded = False

    @property
    def trainer(self) -> Trainer:
        """The trainer; open."""
        assert self._trainer is not None, "requests of a model come after it was created"
        return self._trainer

    @property
    def _gradients(self) -> AccumulatesGradients:
        return cast(AccumulatesGradients, self.trainer)

    def gradient(self, request: GradientRequest) -> GradientResult:
        """Add the gradient of a request to the one that is held, or look only."""
        base = self.base
        rows = rows_of(request.data, base.config.vocabulary, base.config.positions)
        context = base.context("trainer", self.seed)
        algorithm, batch = prepared(request, rows, base.catalog, context)
        try:
            metrics = self._gradients.accumulate(batch, algorithm, self.updates, request.backward)
        except NonFiniteLoss as error:
            self.held = False
            raise Refused(
                400, f"{error}. The gradient that was held is dropped; send all of it again"
            ) from error
        self.held = self.held or request.backward
        logprobs = cast(Any, self.trainer).step_logprobs()
        told = {"loss:sum": metrics["loss"]}
        if request.loss not in LOSSES:
            told |= {
                f"{name}:mean": value
                for name, value in metrics.items()
                if ":" not in name and np.isfinite(value)
            }
        return GradientResult(rows.back(logprobs), told)

    def step(self, settings: AdamWStep) -> dict[str, object]:
        """One optimizer step."""
        try:
            metrics = self._gradients.apply(settings)
        except NonFiniteLoss as error:
            self.held = False
            raise Refused(
                400, f"{error}. The gradient that was held is dropped; send all of it again"
            ) from error
        self.updates, self.held = self.updates + 1, False
        return {"type": "optim_step", "metrics": {k: float(v) for k, v in metrics.items()}}

    def save_state(self, folder: Path) -> None:
        """Weights and optimizer."""
        self.trainer.save(folder)
        finish = getattr(self.trainer, "finish_save", None)
        if finish is not None:
            finish(True)

    def keep_state(
        self, kept: KeptModel, next: int, results: Mapping[int, tuple[bytes, Outcome]]
    ) -> None:
        """Keep what requests before ``next`` have made, with their results."""
        folder = kept.begin_state(next)
        self.save_state(folder)
        kept.finish_state(folder, self.updates, results)
        self.loaded = False

    def load_state(self, folder: Path, optimizer: bool) -> None:
        """Go on from there; without ``optimizer`` it begins anew."""
        self.trainer.load(folder)
        self.held, self.loaded = False, True
        if not optimizer:
            self._gradients.restart()

    def save_weights(self, folder: Path) -> None:
        """A Hugging Face folder, adapters merged."""
        self.trainer.save_model(folder)

    def save_for_sampling(self, folder: Path) -> None:
        """What engines load: an adapter if they serve several of one base, else all weights."""
        if self.lora_rank and self.base.most_adapters:
            write_adapter(self.trainer, self.base.name, folder)
        else:
            self.save_weights(folder)

    def write(self, kind: Kind, folder: Path) -> None:
        """What is saved under a name."""
        match kind:
            case "weights":
                self.save_state(folder)
            case "sampler_weights":
                self.save_for_sampling(folder)
            case "external_weights":
                self.export(folder)

    def export(self, folder: Path) -> None:
        """What other programs read: adapters as PEFT has them, all weights as a Hugging Face folder."""
        if self.lora_rank:
            write_adapter(self.trainer, self.base.name, folder)
        else:
            self.save_weights(folder)

    def close(self) -> None:
        """Free what the trainer has."""
        trainer, self._trainer = self._trainer, None
        if trainer is not None:
            trainer.close()
