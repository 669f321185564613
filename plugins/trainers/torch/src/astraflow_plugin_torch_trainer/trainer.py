"""The trainer ``torch``: setup, log-probs, one optimizer step, and the ways in and out of its state."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from astraflow_core.errors import NonFiniteLoss, UserError
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.protocols.trainer import AdamWStep
from astraflow_core.types import Batch, ComponentContext, ExportedTensor
from astraflow_plugin_torch_trainer import checkpoint
from astraflow_plugin_torch_trainer.compiler import check_compiler
from astraflow_plugin_torch_trainer.config import TorchTrainerConfig
from astraflow_torch_training import export, lora
from astraflow_torch_training.adoption import ADAPTER_FILE, given_adapters
from astraflow_torch_training.critic import with_critic, with_value_head
from astraflow_torch_training.gradient import Tally, accumulate, step_metrics
from astraflow_torch_training.host_memory import Waiting
from astraflow_torch_training.memory import (
    enough_memory,
    enough_memory_for_state,
    peak_memory_gb,
)
from astraflow_torch_training.model import CausalLM, attention_of, load_model
from astraflow_torch_training.optimizer import (
    adamw,
    adamw8bit,
    clip_gradients,
    muon,
    set_adamw,
    set_lr,
)
from astraflow_torch_training.trees import FLEX, check_trees, obstacle_to_trees
from astraflow_torch_weights.batch_invariant import make_batch_invariant
from astraflow_torch_weights.preloading import preload as preload
from astraflow_training.layouts import cut, layout_for
from astraflow_training.micro_batches import MicroBatch, check_context
from astraflow_training.schedule import lr_factor

# On CPU activations of a few thousand tokens stay in cache; a GPU wants larger products.
MICRO_BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}


class TorchTrainer:
    """A Hugging Face causal LM, AdamW (Loshchilov & Hutter 2019) or Muon and a schedule in one process.

    Weights, gradients and optimizer state are float32; with ``compute_dtype = "bfloat16"`` matrix products
    run under autocast. Dropout is off, so that the log-probs trained on are those that were sampled from.
    For an algorithm that needs values, a linear value head shares the backbone, or has its own backbone
    (``critic = "model"``); either is in checkpoints and never published.

    With ``lora_rank`` adapters are trained and published, and the reference model is the model without them.
    """

    proximal_in_step = True

    def __init__(self, config: TorchTrainerConfig, context: ComponentContext) -> None:
        self._config, self._seed = config, context.seed
        self._autocast = torch.bfloat16 if config.compute_dtype == "bfloat16" else None
        self._steps = 0
        self._total_steps = 0
        self._reference: CausalLM | None = None
        self._critic = False
        self._last: tuple[Tally, Batch] | None = None
        self.weights_kind = "adapter" if config.lora_rank else "full"

    def setup(self, model: Path, total_steps: int, needs: frozenset[str]) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        torch.set_num_threads(self._config.threads)
        torch.manual_seed(self._seed)
        device = _device(self._config.device)
        attention = attention_of(self._config, device)
        # A mask of all pairs costs little compared with the arithmetic of a CPU, and much memory of a GPU.
        trees = (device.type == "cpu" and attention != "flash_attention_2") or attention == FLEX
        # In a tree the tokens before one are not its neighbours: attention adds up in another order.
        trees = trees and not self._config.batch_invariant
        self._layout = layout_for(self._config.layout, attention, trees)
        self._budget = self._config.micro_batch_tokens or MICRO_BATCH_TOKENS[device.type]
        self._source, self._total_steps = model, total_steps
        self._model = self._loaded(model, device, attention, self._config.gradient_checkpointing)
        own = self._config.reference_model is None
        self._bare_is_reference = "reference" in needs and own and self._config.lora_rank > 0
        if "reference" in needs and not self._bare_is_reference:
            self._reference = self._load_reference(attention)
        if self._config.lora_rank:
            lora.with_adapters(self._model.whole, self._config)
        self._critic = "values" in needs
        if self._critic and self._config.critic == "head":
            self._model = with_value_head(self._model)
        elif self._critic:
            folder = self._config.critic_model
            self._model = with_critic(
                self._model, self._load_other_model("critic_model", folder or model, attention)
            )
        if self._config.compile:
            check_compiler("compile = true", self._model.device)
            compiled = torch.compile(self._model.backbone, dynamic=True)
            self._model = replace(self._model, backbone=compiled)
        self._optimizers = self._make_optimizers()

    @property
    def reference_is_current(self) -> bool:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        return self._steps == 0 and self._config.reference_model is None

    def logprobs(
        self, batch: Batch, model: Literal["current", "reference"]
    ) -> npt.NDArray[np.float32]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        if model == "reference":
            batch = replace(batch, routed_experts=None)  # another model makes its own choices
        if model == "reference" and self._bare_is_reference:
            with lora.adapters_off(self._model.whole):
                return self.logprobs(batch, "current")
        chosen = self._model if model == "current" else self._reference
        if chosen is None:
            raise UserError("no reference model was loaded: setup() did not request it")
        return self._evaluated(
            batch, lambda micro, targets: chosen.predict(micro, targets, batch.temperature).logprobs
        )

    def logit_gradients(self, batch: Batch) -> npt.NDArray[np.float32]:
        """See :class:`astraflow_core.protocols.trainer.GivesLogitGradients`."""
        model = self._model
        return self._evaluated(
            batch, lambda micro, targets: model.logit_gradients(micro, targets, batch.temperature)
        )

    def values(self, batch: Batch) -> npt.NDArray[np.float32]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`: of the state before each token, 0 at the
        first of a row."""
        if not self._critic:
            raise UserError("no critic was made: setup() did not request values")
        return self._evaluated(batch, lambda micro, _: self._model.values(micro))

    def _evaluated(
        self, batch: Batch, of: Callable[[MicroBatch, torch.Tensor], torch.Tensor]
    ) -> npt.NDArray[np.float32]:
        """What ``of`` says of every token, float32 ``[N]``, 0 at the first of a row; without gradient."""
        result = np.zeros(len(batch.tokens), dtype=np.float32)
        device = self._model.device
        for micro in self._cut(batch, np.ones(len(batch.tokens), dtype=np.bool_)):
            targets = torch.from_numpy(batch.tokens[micro.positions].astype(np.int64)).to(device)
            with torch.no_grad(), self._enough_memory(batch):
                result[micro.positions] = of(micro, targets).cpu().numpy()
        return result

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`.

        In addition to the required metrics: ``trained_tokens``, ``loss_<term>`` (they add up to ``loss``),
        ``entropy_estimate``, ``critic_grad_norm`` of a separate critic, ``padding_fraction`` of the computed
        tokens, ``forward_s``, ``backward_s``, ``optimizer_s`` and ``peak_memory_gb``.
        """
        self._zero_grad()
        tally = self._accumulated(batch, algorithm, step)
        lr = self._config.lr * lr_factor(
            self._steps,
            self._total_steps,
            self._config.schedule,
            self._config.warmup_steps,
            self._config.min_lr_ratio,
        )
        with tally.clock("optimizer_s"):
            sums = tally.totals()
            norms = self._clip(sums.get("loss", 0.0), self._config.max_grad_norm)
            with enough_memory_for_state("the optimizer's state"):
                for optimizer in self._optimizers:
                    set_lr(optimizer, lr)
                    optimizer.step()
            self._zero_grad()
        self._steps += 1
        return {**self._metrics(sums, tally, batch), **norms, "lr": lr}

    def accumulate(
        self, batch: Batch, algorithm: Algorithm, step: int, backward: bool = True
    ) -> dict[str, float]:
        """See :class:`astraflow_core.protocols.trainer.AccumulatesGradients`; metrics as those of :meth:`step`."""
        with contextlib.nullcontext() if backward else torch.no_grad():
            tally = self._accumulated(batch, algorithm, step)
        sums = tally.totals()
        self._check_loss(sums.get("loss", 0.0))
        return self._metrics(sums, tally, batch)

    def apply(self, settings: AdamWStep) -> dict[str, float]:
        """See :class:`astraflow_core.protocols.trainer.AccumulatesGradients`. Raises :class:`UserError` with another
        optimizer than AdamW."""
        if self._config.optimizer != "adamw":
            raise UserError(
                f"trainer 'torch' has optimizer = {self._config.optimizer!r}; steps with settings of AdamW need "
                "optimizer = 'adamw'"
            )
        if all(parameter.grad is None for parameter in self._model.whole.parameters()):
            raise ValueError("no gradient is held: accumulate() has not been called since")
        norms = self._clip(0.0, settings.max_grad_norm)
        (optimizer,) = self._optimizers
        assert isinstance(optimizer, torch.optim.AdamW)
        set_adamw(optimizer, settings)
        with enough_memory_for_state("the optimizer's state"):
            optimizer.step()
        self._zero_grad()
        self._steps += 1
        return {**norms, "lr": settings.lr}

    def restart(self) -> None:
        """See :class:`astraflow_core.protocols.trainer.AccumulatesGradients`. The reference model stays the initial one."""
        self._zero_grad()
        self._optimizers = self._make_optimizers()

    def step_logprobs(self) -> npt.NDArray[np.float32] | None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        if self._last is None:
            return None
        tally, batch = self._last
        return tally.logprobs_of(batch)

    def step_entropies(self) -> npt.NDArray[np.float32] | None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        if self._last is None or not self._last[0].entropies:
            return None
        tally, batch = self._last
        return tally.entropies_of(batch)

    def export(self) -> Iterator[ExportedTensor]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        if self._config.lora_rank:
            return export.export_adapters(self._model.whole, self._config.publish_dtype)
        return export.export(self._model.whole, self._config.publish_dtype)

    def save(self, directory: Path) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        checkpoint.save(directory, self._model.whole, self._optimizers, self._steps)

    def load(self, directory: Path) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`. The reference model stays the initial one."""
        self._zero_grad()
        self._steps = checkpoint.load(directory, self._model.whole, self._optimizers)

    def adopt(self, model: Path, steps: int) -> None:
        """See :class:`astraflow_core.protocols.trainer.AdoptsWeights`. Another model, or its adapters, are in memory
        meanwhile. With ``publish_dtype = "bfloat16"`` the weights are the rounded ones."""
        self._zero_grad()
        if self._config.lora_rank:
            given = given_adapters(self._model.whole, model / ADAPTER_FILE)
        else:
            attention = attention_of(self._config, self._model.device)
            other = load_model(model, self._model.device, attention, False, self._autocast)
            given = other.whole.state_dict()
        checkpoint.adopt(self._model.whole, given)
        self._steps = steps

    def save_model(self, directory: Path) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`; in ``publish_dtype``, adapters
        merged."""
        export.write_model(self._model.whole, self._config.publish_dtype, self._source, directory)

    def sleep(self) -> None:
        """See :class:`astraflow_core.protocols.trainer.Sleeps`: what the optimizer remembers, and with
        ``offload_weights`` the models. There are no gradients between two steps."""
        models = [self._model, self._reference] if self._config.offload_weights else []
        self._waiting = Waiting(self._optimizers, [model for model in models if model is not None])

    def wake(self) -> None:
        """See :class:`astraflow_core.protocols.trainer.Sleeps`."""
        self._waiting.end()

    def close(self) -> None:
        """Free model, reference and optimizer."""
        for name in ("_model", "_optimizers", "_waiting"):
            self.__dict__.pop(name, None)
        self._reference = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _accumulated(self, batch: Batch, algorithm: Algorithm, step: int) -> Tally:
        tally = Tally(self._model.device)
        parts = self._cut(batch, batch.loss_mask)
        with self._enough_memory(batch):
            accumulate(self._model, batch, algorithm, step, parts, tally)
        self._last = (tally, batch)
        return tally

    def _metrics(self, sums: dict[str, float], tally: Tally, batch: Batch) -> dict[str, float]:
        return {
            "loss": 0.0,
            **step_metrics(sums, batch),
            "tokens": float(len(batch.tokens)),
            "trained_tokens": float(batch.trained_tokens),
            "padding_fraction": 1 - tally.tokens / tally.computed if tally.computed else 0.0,
            "peak_memory_gb": peak_memory_gb(self._model.device),
            **tally.seconds,
        }

    def _cut(self, batch: Batch, wanted: npt.NDArray[np.bool_]) -> Iterator[MicroBatch]:
        check_context(batch, self._model.context_length)
        return cut(batch, wanted, self._budget, self._layout)

    def _make_optimizers(self) -> list[torch.optim.Optimizer]:
        match self._config.optimizer:
            case "adamw":
                return [adamw(self._model, self._config)]
            case "muon":
                return muon(self._model, self._config)
            case "adamw8bit":
                check_compiler("optimizer = 'adamw8bit'", self._model.device)
                return [adamw8bit(self._model, self._config)]

    def _zero_grad(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _enough_memory(self, batch: Batch) -> contextlib.AbstractContextManager[None]:
        return enough_memory(self._budget, int(batch.lengths.max(initial=0)))

    def _clip(self, loss: float, largest: float) -> dict[str, float]:
        """Norms of the gradient before it is clipped; raises before anything is changed."""
        self._check_loss(loss)
        try:
            return clip_gradients(self._model, largest)
        except NonFiniteLoss as error:
            self._zero_grad()
            raise NonFiniteLoss(
                f"optimizer step {self._steps}: {error} (loss {loss}); no step was made"
            ) from error

    def _check_loss(self, loss: float) -> None:
        """Drop the gradient and raise :class:`NonFiniteLoss` unless the loss is finite."""
        if not math.isfinite(loss):
            self._zero_grad()
            raise NonFiniteLoss(
                f"optimizer step {self._steps}: the loss is {loss}; no step was made"
            )

    def _load_reference(self, attention: str) -> CausalLM:
        folder = self._config.reference_model
        if folder is None:
            return self._model.frozen_copy()
        model = self._load_other_model("reference_model", folder, attention)
        model.whole.requires_grad_(False).eval()
        return model

    def _loaded(
        self, folder: Path, device: torch.device, attention: str, checkpointing: bool
    ) -> CausalLM:
        model = load_model(folder, device, attention, checkpointing, self._autocast)
        if self._config.batch_invariant:
            make_batch_invariant(model.whole, "trainer 'torch'")
        parts = model.backbone, model.whole.config, device
        with model.precision():
            if self._config.layout == "tree":
                check_trees(*parts, folder)
            elif self._layout == "tree" and obstacle_to_trees(*parts):
                self._layout = "bucketed"
        return model

    def _load_other_model(self, key: str, folder: Path, attention: str) -> CausalLM:
        """Another model of the same vocabulary, on the same device."""
        checkpointing = key == "critic_model" and self._config.gradient_checkpointing
        device = self._model.device
        model = self._loaded(folder, device, attention, checkpointing)
        if model.vocabulary != self._model.vocabulary:
            raise UserError(
                f"{key} {folder} has a vocabulary of {model.vocabulary}, the trained model one of "
                f"{self._model.vocabulary}: their tokens differ"
            )
        return model


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"trainer 'torch' has no device {name!r}: {error}") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"trainer 'torch' runs on 'cpu' and 'cuda', not on {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"trainer 'torch' is to run on {name!r}, but torch finds no CUDA device")
    return device
