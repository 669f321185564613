"""Trainer: owns the trained model of one policy; possibly many ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch, ExportedTensor, TensorSlice


class Trainer(Protocol):
    """Built as ``factory(config, context)``; nothing heavy happens before :meth:`setup`.

    With several ranks (``context.ranks``) every method is called on every rank, with the same arguments in the
    same order; collectives are up to the trainer. The results of rank 0 are used and must be complete there;
    :meth:`export` is iterated to its end on all. A loss that is not finite is raised on all ranks alike; any
    other exception on one of them ends them all.
    """

    def setup(self, model: Path, total_steps: int, needs: frozenset[str]) -> None:
        """Load a Hugging Face folder. ``total_steps`` is the number of optimizer steps the run will make
        (for schedules), ``needs`` what the algorithm needs (a reference model is loaded only if named)."""

    def logprobs(
        self, batch: Batch, model: Literal["current", "reference"]
    ) -> npt.NDArray[np.float32]:
        """Log-probs of every token given those before it in its row, logits divided by
        ``batch.temperature``: float32 ``[N]``, 0 at the first token of a row. No gradient.

        While an attribute ``reference_is_current`` is true the two models are the same, as they are before the first
        step if the reference model is the initial one: then an update asks for one of them only."""

    def values(self, batch: Batch) -> npt.NDArray[np.float32]:
        """The value of the state before each token, float32 ``[N]``; only with capability ``values``. A loss
        then gets ``predicted_values``, the same of the current weights and with gradient."""

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """One optimizer step on a mini-batch whose ``advantages`` and ``weights`` are set.

        The gradient is that of the whole mini-batch however it is cut into micro-batches or ranks.
        A trainer with an attribute ``proximal_in_step`` that is true gives the loss of an algorithm that needs
        proximal log-probs its own current ones, without gradient, where ``batch.proximal`` is ``None``: it then is
        not asked for them before the first mini-batch of an update, if the algorithm reads them in its loss only.
        ``step`` counts the updates of the run (for the algorithm's schedules). Returns metrics, at least
        ``loss``, ``grad_norm`` (before clipping), ``lr``, ``tokens`` and the algorithm's. Raises
        :class:`astraflow_core.errors.NonFiniteLoss` before the optimizer changes anything. A trainer may have a method
        ``step_logprobs()``: the log-probs that the last step computed, float32 ``[N]``, 0 where not trained; and one
        ``step_entropies()``: the entropies in nats, ``None`` if the loss needed none. All ranks call them, or none does.
        """

    def export(self) -> Iterator[ExportedTensor]:
        """The current weights, full tensors under Hugging Face names, one at a time; never the whole
        model twice. Names that are tied to another tensor are omitted.

        A trainer with capability ``lora`` has an attribute ``weights_kind`` after :meth:`setup`; if that is
        ``"adapter"``, it exports an adapter, under PEFT's names (``base_model.model.….lora_A.weight`` and
        ``….lora_B.weight``), its scale folded into B, for the folder that :meth:`setup` was given."""

    def save(self, directory: Path) -> None:
        """Write weights, optimizer, schedule and RNG state into an existing empty folder shared by all ranks.
        With capability ``async_save`` it may return before that has finished: see :class:`SavesLater`."""

    def load(self, directory: Path) -> None:
        """Restore what :meth:`save` wrote; the next step is then identical to that of an uninterrupted run."""

    def save_model(self, directory: Path) -> None:
        """Write a Hugging Face folder (weights, config, tokenizer) that ``from_pretrained`` loads."""

    def close(self) -> None:
        """Free all resources."""


class GivesLogitGradients(Protocol):
    """Additional members of a :class:`Trainer` with capability ``logit_gradients``."""

    def logit_gradients(self, batch: Batch) -> npt.NDArray[np.float32]:
        """The squared length of the gradient of each token's log-prob by the logits, those divided by
        ``batch.temperature``: ``1 - 2 p + Σ p²`` with p the probability of the token and the sum over the vocabulary, float32
        ``[N]``, 0 at the first token of a row. Of the current weights."""


class ExportsShards(Protocol):
    """Additional members of a :class:`Trainer` with capability ``sharded_export``."""

    @property
    def publish(self) -> Literal["auto", "sharded", "gathered"]:
        """Who publishes if there are several ranks: each rank its own part (``"sharded"``), rank 0
        what :meth:`Trainer.export` gathers there (``"gathered"``), or the former where the transport allows it (``"auto"``)."""

    def export_shards(self) -> Iterator[TensorSlice]:
        """What this rank holds of the current weights, one slice at a time: all ranks together give every element of
        every tensor that :meth:`Trainer.export` gives once, with the same bits. The slices are the same at every
        call. Iterated to the end on all ranks, so it may gather a tensor that is not held in rows, but never
        the whole model."""


class SavesLater(Protocol):
    """Additional members of a :class:`Trainer` with capability ``async_save``."""

    def finish_save(self, wait: bool) -> bool:
        """Whether all that this rank wrote for the last :meth:`Trainer.save` is in its files; with ``wait`` return
        only then. Raises any error of the write. Training steps may come in between."""


class AdoptsWeights(Protocol):
    """Additional members of a :class:`Trainer` with capability ``adopt``."""

    def adopt(self, model: Path, steps: int) -> None:
        """Replace the trained weights by those that an earlier process of this trainer exported: the weights of a Hugging Face
        folder of the same model or, with ``weights_kind`` "adapter", ``adapter_model.safetensors`` in it. The next export
        is bitwise identical. ``steps``: how many optimizer steps count as made, for the schedule. Called on every rank
        after :meth:`Trainer.setup`, and :meth:`Trainer.load` if there is a checkpoint; everything else is unchanged."""


@dataclass(frozen=True, slots=True)
class AdamWStep:
    """The settings of one step of AdamW (Loshchilov & Hutter 2019). ``max_grad_norm`` 0: the gradient is not clipped."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0


class AccumulatesGradients(Protocol):
    """Additional members of a :class:`Trainer` with capability ``gradients``: :meth:`Trainer.step` in two parts, for
    callers that choose which batches to accumulate. :meth:`Trainer.step` and :meth:`Trainer.load` drop a gradient that
    is held, and :meth:`Trainer.save` leaves it out."""

    def accumulate(
        self, batch: Batch, algorithm: Algorithm, step: int, backward: bool = True
    ) -> dict[str, float]:
        """Add the gradient of the loss of ``batch``, prepared as for :meth:`Trainer.step`, to the one that is held; the
        weights stay as they are. Returns ``loss``, ``tokens`` and the algorithm's metrics; ``step_logprobs()``, which
        such a trainer has, then gives the log-probs of this batch. Without ``backward`` no gradient is computed and the
        one held stays. Raises :class:`astraflow_core.errors.NonFiniteLoss`, and drops all that is held."""

    def apply(self, settings: AdamWStep) -> dict[str, float]:
        """One AdamW step with the gradient that is held, which is then dropped; weight decay on the tensors on which
        :meth:`Trainer.step` has it. Returns ``grad_norm``, before clipping, and ``lr``. Raises
        :class:`ValueError` if no gradient is held, and :class:`astraflow_core.errors.NonFiniteLoss`, which drops it,
        before the optimizer changes anything."""

    def restart(self) -> None:
        """Continue with the current weights as if no step had been made: the optimizer state and any held gradient are dropped."""


class Sleeps(Protocol):
    """Additional members of a :class:`Trainer` with capability ``sleep``, for turns on devices that it shares with engines.
    Its steps are bitwise identical to those of a trainer that never sleeps. While it sleeps only these are called:
    :meth:`Trainer.save`, :meth:`Trainer.save_model`, :meth:`SavesLater.finish_save` and :meth:`Trainer.close`."""

    def sleep(self) -> None:
        """Move what it has on the devices to host memory."""

    def wake(self) -> None:
        """Move it back."""
