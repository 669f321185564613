"""The trainer ``torch``: setup, log-probs, one optimizer step, and the ways in and out of its state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from transformers.utils import is_flash_attn_2_available

from astraflow_core.errors import NonFiniteLoss, UserError
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch, ComponentContext, ExportedTensor
from astraflow_plugin_torch_trainer import checkpoint, export
from astraflow_plugin_torch_trainer.config import TorchTrainerConfig
from astraflow_plugin_torch_trainer.gradient import Tally, accumulate
from astraflow_plugin_torch_trainer.micro_batches import MicroBatch, micro_batches
from astraflow_plugin_torch_trainer.model import VALUE_HEAD, CausalLM, load_model
from astraflow_plugin_torch_trainer.schedule import lr_factor

# On CPU activations of a few thousand tokens stay in cache; a GPU wants larger products.
MICRO_BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}


class TorchTrainer:
    """A Hugging Face causal LM, AdamW (Loshchilov & Hutter 2019) and a schedule in one process.

    Weights, gradients and optimizer state are float32; with ``compute_dtype = "bfloat16"`` matrix products
    run under autocast. Dropout is off, so that the log-probs trained on are those that were sampled from.
    For an algorithm that needs values, a linear value head shares the backbone; it is in checkpoints and
    never published.
    """

    def __init__(self, config: TorchTrainerConfig, context: ComponentContext) -> None:
        self._config, self._seed = config, context.seed
        self._autocast = torch.bfloat16 if config.compute_dtype == "bfloat16" else None
        self._steps = 0
        self._total_steps = 0
        self._reference: CausalLM | None = None
        self._critic = False

    def setup(self, model: Path, total_steps: int, needs: frozenset[str]) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        torch.set_num_threads(self._config.threads)
        torch.manual_seed(self._seed)
        device = _device(self._config.device)
        attention = self._attention(device)
        layout = self._config.layout
        self._packed = layout == "packed" or (layout == "auto" and attention == "flash_attention_2")
        self._budget = self._config.micro_batch_tokens or MICRO_BATCH_TOKENS[device.type]
        self._source, self._total_steps = model, total_steps
        self._model = load_model(
            model, device, attention, self._config.gradient_checkpointing, self._autocast
        )
        if "reference" in needs:
            self._reference = self._load_reference(attention)
        self._critic = "values" in needs
        if self._critic:
            self._model.add_value_head()
        self._optimizer = self._adamw()

    def logprobs(
        self, batch: Batch, model: Literal["current", "reference"]
    ) -> npt.NDArray[np.float32]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        chosen = self._model if model == "current" else self._reference
        if chosen is None:
            raise UserError("no reference model was loaded: setup() was not told that it is needed")
        result = np.zeros(len(batch.tokens), dtype=np.float32)
        device = chosen.device
        for micro in self._cut(batch, np.ones(len(batch.tokens), dtype=np.bool_)):
            targets = torch.from_numpy(batch.tokens[micro.positions].astype(np.int64)).to(device)
            with torch.no_grad():
                logprobs = chosen.predict(micro, targets, batch.temperature).logprobs
            result[micro.positions] = logprobs.cpu().numpy()
        return result

    def values(self, batch: Batch) -> npt.NDArray[np.float32]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`: of the state before each token, 0 at the
        first of a row."""
        if not self._critic:
            raise UserError("no value head was made: setup() was not told that values are needed")
        result = np.zeros(len(batch.tokens), dtype=np.float32)
        for micro in self._cut(batch, np.ones(len(batch.tokens), dtype=np.bool_)):
            with torch.no_grad():
                result[micro.positions] = self._model.values(micro).cpu().numpy()
        return result

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`.

        Beside the required metrics: ``trained_tokens``, ``loss_<term>`` (they add up to ``loss``),
        ``padding_fraction`` of the computed tokens, ``forward_s``, ``backward_s``, ``optimizer_s``.
        """
        self._optimizer.zero_grad(set_to_none=True)
        tally = Tally(self._model.device)
        accumulate(
            self._model,
            batch,
            algorithm,
            step,
            self._cut(batch, batch.loss_mask),
            tally,
        )
        lr = self._config.lr * lr_factor(
            self._steps,
            self._total_steps,
            self._config.schedule,
            self._config.warmup_steps,
            self._config.min_lr_ratio,
        )
        with tally.clock("optimizer_s"):
            sums = _floats(tally.sums)
            norm = self._clip(sums.get("loss", 0.0))
            for group in self._optimizer.param_groups:
                group["lr"] = lr * group["lr_scale"]
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        self._steps += 1
        return {
            "loss": 0.0,
            **sums,
            "grad_norm": norm,
            "lr": lr,
            "tokens": float(len(batch.tokens)),
            "trained_tokens": float(batch.trained_tokens),
            "padding_fraction": 1 - tally.tokens / tally.computed if tally.computed else 0.0,
            **tally.seconds,
        }

    def export(self) -> Iterator[ExportedTensor]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        return export.export(self._model.whole, self._config.publish_dtype)

    def save(self, directory: Path) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        checkpoint.save(directory, self._model.whole, self._optimizer, self._steps)

    def load(self, directory: Path) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`. The reference model stays the initial one."""
        self._steps = checkpoint.load(directory, self._model.whole, self._optimizer)

    def save_model(self, directory: Path) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`; in ``publish_dtype``."""
        export.write_model(self._model.whole, self._config.publish_dtype, self._source, directory)

    def close(self) -> None:
        """Free model, reference and optimizer."""
        for name in ("_model", "_optimizer"):
            self.__dict__.pop(name, None)
        self._reference = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _cut(self, batch: Batch, wanted: npt.NDArray[np.bool_]) -> Iterator[MicroBatch]:
        return micro_batches(batch, wanted, self._budget, self._packed)

    def _clip(self, loss: float) -> float:
        """Norm of the whole gradient before it is clipped; raises before anything is changed."""
        gradients = [p.grad for p in self._model.whole.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        value = float(norm)
        if not (math.isfinite(loss) and math.isfinite(value)):
            self._optimizer.zero_grad(set_to_none=True)
            raise NonFiniteLoss(
                f"optimizer step {self._steps}: the loss is {loss}, the gradient's norm {value}; "
                "no step was made"
            )
        if self._config.max_grad_norm:
            torch.nn.utils.clip_grads_with_norm_(
                self._model.whole.parameters(), self._config.max_grad_norm, norm
            )
        return value

    def _adamw(self) -> torch.optim.AdamW:
        embedding = self._model.whole.get_input_embeddings().weight
        decayed: list[torch.nn.Parameter] = []
        kept: list[torch.nn.Parameter] = []
        critic: list[torch.nn.Parameter] = []
        for name, parameter in self._model.whole.named_parameters():
            matrix = parameter.ndim >= 2 and parameter is not embedding
            value = name.startswith(f"{VALUE_HEAD}.")
            (critic if value else decayed if matrix else kept).append(parameter)
        config = self._config
        groups = [
            {"params": decayed, "weight_decay": config.weight_decay, "lr_scale": 1.0},
            {"params": kept, "weight_decay": 0.0, "lr_scale": 1.0},
        ]
        if critic:
            scale = config.value_lr_scale
            groups.append({"params": critic, "weight_decay": 0.0, "lr_scale": scale})
        return torch.optim.AdamW(
            groups,
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            fused=True,
        )

    def _load_reference(self, attention: str) -> CausalLM:
        folder = self._config.reference_model
        if folder is None:
            return self._model.frozen_copy()
        device, autocast = self._model.device, self._autocast
        model = load_model(Path(folder), device, attention, False, autocast)
        if model.vocabulary != self._model.vocabulary:
            raise UserError(
                f"reference_model {folder} has a vocabulary of {model.vocabulary}, the trained model one of "
                f"{self._model.vocabulary}: their tokens differ"
            )
        model.whole.requires_grad_(False).eval()
        return model

    def _attention(self, device: torch.device) -> str:
        if self._config.attention != "auto":
            return self._config.attention
        flash = device.type == "cuda" and self._autocast is not None and is_flash_attn_2_available()
        return "flash_attention_2" if flash else "sdpa"


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


def _floats(sums: dict[str, torch.Tensor]) -> dict[str, float]:
    """One transfer from the device for all of them."""
    if not sums:
        return {}
    return dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True))
