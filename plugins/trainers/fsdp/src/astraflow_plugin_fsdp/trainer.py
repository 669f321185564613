"""The trainer ``fsdp``: the same calls on every rank, each with its share of the rows."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from astraflow_core.errors import NonFiniteLoss, UserError
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.protocols.trainer import AdamWStep
from astraflow_core.types import Batch, ComponentContext, ExportedTensor, TensorSlice
from astraflow_plugin_fsdp import checkpoint, tensor_parallel
from astraflow_plugin_fsdp.config import FsdpConfig
from astraflow_plugin_fsdp.context_attention import ATTENTION as CONTEXT_ATTENTION
from astraflow_plugin_fsdp.context_layout import padded
from astraflow_plugin_fsdp.export_shards import export_shards
from astraflow_plugin_fsdp.gradient import accumulate
from astraflow_plugin_fsdp.group import RankGroup, join
from astraflow_plugin_fsdp.sharding import ModelRecipe, ShardedLM, adopt, full, load_sharded
from astraflow_torch_training import export, lora
from astraflow_torch_training.critic import NOT_PUBLISHED
from astraflow_torch_training.gradient import Tally, step_metrics
from astraflow_torch_training.memory import (
    enough_memory,
    enough_memory_for_state,
    peak_memory_gb,
)
from astraflow_torch_training.model import attention_of
from astraflow_torch_training.optimizer import adamw, clip_gradients, set_adamw, set_lr
from astraflow_training.layouts import layout_for
from astraflow_training.micro_batches import MicroBatch, check_context
from astraflow_training.schedule import lr_factor
from astraflow_training.shares import Share, even_micro_batches

# On CPU activations of a few thousand tokens stay in cache; a GPU wants larger products.
MICRO_BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}


class FsdpTrainer:
    """A Hugging Face causal LM, AdamW (Loshchilov & Hutter 2019) and a schedule, sharded over ranks by FSDP2
    (Zhao et al. 2023, "PyTorch FSDP", in its form per parameter).

    Weights, gradients and optimizer state are float32 and each rank holds its shard of them; with
    ``compute_dtype = "bfloat16"`` gathered weights and activations are bfloat16. Dropout is off. Each rank
    computes a share of the rows, with ``context_parallel`` of the tokens of rows; the step is that of one rank with all
    of them.
    """

    proximal_in_step = True

    def __init__(self, config: FsdpConfig, context: ComponentContext) -> None:
        self._config, self._seed, self._ranks = config, context.seed, context.ranks
        self._steps = 0
        self._total_steps = 0
        self._group: RankGroup | None = None
        self._reference: ShardedLM | None = None
        self._critic = False
        self._reached: tuple[bool, bool] | None = None
        self.weights_kind = "adapter" if config.lora_rank else "full"
        self._last: tuple[Tally, Share, int, bool] | None = None
        self._saving: tuple[concurrent.futures.Future[Any], Path] | None = None

    def setup(self, model: Path, total_steps: int, needs: frozenset[str]) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        config, ranks = self._config, self._ranks
        torch.set_num_threads(config.threads)
        torch.manual_seed(self._seed)
        self._group = group = join(
            ranks.rank,
            ranks.size,
            ranks.local,
            config.device,
            config.replicas,
            ranks.deadline_s,
            config.tensor_parallel,
            config.cpu_offload,
            config.context_parallel,
        )
        attention = CONTEXT_ATTENTION
        if config.context_parallel == 1:
            attention = attention_of(config, group.device)
        self._layout = layout_for(config.layout, attention)
        self._budget = config.micro_batch_tokens or MICRO_BATCH_TOKENS[group.device.type]
        self._source, self._total_steps = model, total_steps
        self._critic = "values" in needs
        critic_source: Path | Literal["head"] | None = None
        if self._critic:
            own = config.critic == "model"
            critic_source = (config.critic_model or model) if own else "head"
        adapted = config.lora_rank > 0
        recipe = ModelRecipe(
            config, attention, config.gradient_checkpointing, adapted, critic_source
        )
        self._model, self._recipe = load_sharded(model, group, recipe), recipe
        self._bare_is_reference = (
            "reference" in needs and config.reference_model is None and adapted
        )
        if "reference" in needs and not self._bare_is_reference:
            folder = config.reference_model or model
            self._reference = load_sharded(folder, group, ModelRecipe(config, attention))
            self._reference.whole.requires_grad_(False).eval()
            self._same_vocabulary("reference_model", folder, self._reference)
        if self._model.critic is not None:
            self._same_vocabulary("critic_model", critic_source, self._model.critic)
        self._optimizer = adamw(self._model, config)

    @property
    def reference_is_current(self) -> bool:
        """See :class:`astraflow_core.protocols.trainer.Trainer`."""
        return self._steps == 0 and self._config.reference_model is None

    def logprobs(
        self, batch: Batch, model: Literal["current", "reference"]
    ) -> npt.NDArray[np.float32]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`; complete on every rank."""
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
        """See :class:`astraflow_core.protocols.trainer.GivesLogitGradients`; complete on every rank."""
        model = self._model
        return self._evaluated(
            batch, lambda micro, targets: model.logit_gradients(micro, targets, batch.temperature)
        )

    def values(self, batch: Batch) -> npt.NDArray[np.float32]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`: of the state before each token, 0 at the
        first of a row; complete on every rank."""
        if not self._critic:
            raise UserError("no critic was made: setup() did not request values")
        return self._evaluated(batch, lambda micro, _: self._model.values(micro))

    def _evaluated(
        self, batch: Batch, of: Callable[[MicroBatch, torch.Tensor], torch.Tensor]
    ) -> npt.NDArray[np.float32]:
        """What ``of`` says of every token, float32 ``[N]``, 0 at the first of a row; without gradient."""
        group = self._joined()
        share, parts = self._cut(batch, np.ones(len(batch.tokens), dtype=np.bool_))
        result = np.zeros(len(batch.tokens), dtype=np.float32)
        for micro in parts:
            tokens = share.batch.tokens[micro.positions].astype(np.int64)
            targets = torch.from_numpy(tokens).to(group.device)
            with torch.no_grad(), self._enough_memory(batch):
                found = of(micro, targets).cpu().numpy()
            result[share.tokens[micro.positions]] = found
        return group.total(result)

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`. The metrics are those of all ranks, on every
        rank; seconds are of the slowest, memory of the fullest.

        In addition to the required ones: ``trained_tokens``, ``loss_<term>`` (they add up to ``loss``), ``entropy_estimate``,
        ``critic_grad_norm`` of a separate critic, ``padding_fraction`` of the computed tokens, ``forward_s``,
        ``backward_s``, ``optimizer_s``, ``peak_memory_gb``.
        """
        self._zero_grad()
        tally, ranks = self._accumulated(batch, algorithm, step)
        lr = self._config.lr * lr_factor(
            self._steps,
            self._total_steps,
            self._config.schedule,
            self._config.warmup_steps,
            self._config.min_lr_ratio,
        )
        sums = _added(rank["sums"] for rank in ranks[:: self._joined().alike])
        with tally.clock("optimizer_s"):
            norms = self._clip(sums.get("loss", 0.0), self._config.max_grad_norm)
            set_lr(self._optimizer, lr)
            self._make_step()
        return {**self._metrics(sums, tally, ranks, batch), **norms, "lr": lr}

    def accumulate(
        self, batch: Batch, algorithm: Algorithm, step: int, backward: bool = True
    ) -> dict[str, float]:
        """See :class:`astraflow_core.protocols.trainer.AccumulatesGradients`; called on every rank, metrics as those of
        :meth:`step`."""
        tally, ranks = self._accumulated(batch, algorithm, step, backward)
        sums = _added(rank["sums"] for rank in ranks[:: self._joined().alike])
        self._check_loss(sums.get("loss", 0.0))
        return self._metrics(sums, tally, ranks, batch)

    def apply(self, settings: AdamWStep) -> dict[str, float]:
        """See :class:`astraflow_core.protocols.trainer.AccumulatesGradients`; called on every rank."""
        if self._reached is None:
            raise ValueError("no gradient is held: accumulate() has not been called since")
        norms = self._clip(0.0, settings.max_grad_norm)
        set_adamw(self._optimizer, settings)
        self._make_step()
        return {**norms, "lr": settings.lr}

    def restart(self) -> None:
        """See :class:`astraflow_core.protocols.trainer.AccumulatesGradients`. The reference model stays the initial one."""
        self._zero_grad()
        self._optimizer = adamw(self._model, self._config)

    def _accumulated(
        self, batch: Batch, algorithm: Algorithm, step: int, backward: bool = True
    ) -> tuple[Tally, list[dict[str, Any]]]:
        """Adds this rank's part to the gradient that is held; returns its tally, and what each rank says of its own."""
        group = self._joined()
        share, parts = self._cut(batch, batch.loss_mask)
        tally = Tally(group.device)
        reduce_each = self._config.reduce == "each"
        with (
            contextlib.nullcontext() if backward else torch.no_grad(),
            self._enough_memory(batch),
        ):
            boundary = accumulate(
                self._model, share.batch, algorithm, step, parts, tally, reduce_each, backward
            )
        ranks = group.exchange(
            {
                "sums": tally.totals(),
                "seconds": tally.seconds,
                "tokens": tally.tokens,
                "computed": tally.computed,
                "policy": boundary.reached_policy,
                "critic": boundary.reached_critic,
                "memory": peak_memory_gb(group.device),
            }
        )
        if backward:
            policy, critic = self._reached or (False, False)
            self._reached = (
                policy or any(rank["policy"] for rank in ranks),
                critic or any(rank["critic"] for rank in ranks),
            )
        self._last = tally, share, len(batch.tokens), "entropy" in algorithm.needs
        return tally, ranks

    def _metrics(
        self,
        sums: Mapping[str, float],
        tally: Tally,
        ranks: Sequence[Mapping[str, Any]],
        batch: Batch,
    ) -> dict[str, float]:
        shares = ranks[:: self._joined().alike]
        computed = sum(rank["computed"] for rank in shares)
        slowest = {
            name: max(rank["seconds"][name] for rank in ranks) for name in ranks[0]["seconds"]
        }
        return {
            "loss": 0.0,
            **step_metrics(dict(sums), batch),
            "tokens": float(len(batch.tokens)),
            "trained_tokens": float(batch.trained_tokens),
            "padding_fraction": 1 - sum(rank["tokens"] for rank in shares) / max(1, computed)
            if computed
            else 0.0,
            **tally.seconds,
            **slowest,
            "peak_memory_gb": max(rank["memory"] for rank in ranks),
        }

    def step_logprobs(self) -> npt.NDArray[np.float32] | None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`; complete on every rank, all of which call it."""
        if self._last is None:
            return None
        tally, share, count, _ = self._last
        return self._whole(share, tally.logprobs_of(share.batch), count)

    def step_entropies(self) -> npt.NDArray[np.float32] | None:
        """See :meth:`step_logprobs`."""
        if self._last is None or not self._last[3]:
            return None
        tally, share, count, _ = self._last
        return self._whole(share, tally.entropies_of(share.batch), count)

    def _whole(
        self, share: Share, own: npt.NDArray[np.float32], count: int
    ) -> npt.NDArray[np.float32]:
        """What each rank has of its share, of all ``count`` tokens of the batch."""
        result = np.zeros(count, dtype=np.float32)
        result[share.tokens] = own
        return self._joined().total(result)

    def export(self) -> Iterator[ExportedTensor]:
        """See :class:`astraflow_core.protocols.trainer.Trainer`; each tensor is gathered when it is asked for,
        by all ranks."""
        if self._config.lora_rank:
            return export.export_adapters(self._model.whole, self._config.publish_dtype, full)
        return export.export(self._model.whole, self._config.publish_dtype, full)

    @property
    def publish(self) -> Literal["auto", "sharded", "gathered"]:
        """See :class:`astraflow_core.protocols.trainer.ExportsShards`."""
        return self._config.publish

    def export_shards(self) -> Iterator[TensorSlice]:
        """See :class:`astraflow_core.protocols.trainer.ExportsShards`."""
        group = self._joined()
        return export_shards(self._model.whole, self._config.publish_dtype, group.rank, group.size)

    def save(self, directory: Path) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`: returns when the state is copied; each rank
        writes its shard while training continues."""
        self.finish_save(wait=True)
        saving = checkpoint.begin_save(
            directory, self._model.whole, self._optimizer, self._steps, self._joined()
        )
        self._saving = saving, directory

    def finish_save(self, wait: bool) -> bool:
        """See :class:`astraflow_core.protocols.trainer.SavesLater`: true when all ranks have written."""
        if self._saving is None:
            return True
        saving, directory = self._saving
        if not wait and not saving.done():
            return False
        self._saving = None
        checkpoint.wait(saving, directory, self._ranks.deadline_s)
        return True

    def load(self, directory: Path) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`. The reference model stays the initial one."""
        self.finish_save(wait=True)
        self._zero_grad()
        self._steps = checkpoint.load(directory, self._model.whole, self._optimizer, self._joined())

    def adopt(self, model: Path, steps: int) -> None:
        """See :class:`astraflow_core.protocols.trainer.AdoptsWeights`; rank 0 reads, and has the whole model in host
        memory meanwhile. With ``publish_dtype = "bfloat16"`` the weights are the rounded ones."""
        self.finish_save(wait=True)
        self._zero_grad()
        adopt(self._model.whole, model, self._joined(), self._recipe)
        self._steps = steps

    def save_model(self, directory: Path) -> None:
        """See :class:`astraflow_core.protocols.trainer.Trainer`; in ``publish_dtype``, adapters merged, written by
        rank 0."""
        whole, dtype = self._model.whole, self._config.publish_dtype
        if self._joined().rank:
            for _ in export.named_tensors(whole, dtype, full):
                pass
            return
        export.write_model(whole, dtype, self._source, directory, full)

    def close(self) -> None:
        """Free model, reference and optimizer, and leave the group when no rank writes any longer."""
        if self._saving is not None:
            concurrent.futures.wait([self._saving[0]], self._ranks.deadline_s)
            self._saving = None
        for name in ("_model", "_optimizer"):
            self.__dict__.pop(name, None)
        self._reference = self._last = None
        if self._group is not None:
            self._group.leave()
            self._group = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _joined(self) -> RankGroup:
        assert self._group is not None, "setup() must be called first"
        return self._group

    def _cut(self, batch: Batch, wanted: npt.NDArray[np.bool_]) -> tuple[Share, list[MicroBatch]]:
        group = self._joined()
        check_context(batch, self._model.context_length)
        budget = self._budget * group.contexts
        share, parts = even_micro_batches(batch, wanted, budget, self._layout, *group.share)
        if group.contexts > 1:
            parts = [padded(micro, group.contexts) for micro in parts]
        return share, parts

    def _enough_memory(self, batch: Batch) -> contextlib.AbstractContextManager[None]:
        longest = int(batch.lengths.max(initial=0))
        return enough_memory(self._budget, longest, self._joined().contexts)

    def _make_step(self) -> None:
        with enough_memory_for_state("the optimizer's state"):
            self._optimizer.step()
        self._zero_grad()
        self._steps += 1

    def _zero_grad(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._reached = None

    def _complete_gradient(self) -> None:
        """Of the ranks that share layers, and without what no loss reached on any rank, as on one: a gradient of zeros would
        still move those weights by momentum and decay."""
        whole, tensor = self._model.whole, self._joined().tensor
        if tensor is not None:
            tensor_parallel.add_up(whole, tensor)
        policy, critic = self._reached or (False, False)
        for name, parameter in whole.named_parameters():
            valued = name.startswith(NOT_PUBLISHED)
            if not (critic if valued else policy or (critic and self._config.critic == "head")):
                parameter.grad = None

    def _clip(self, loss: float, largest: float) -> dict[str, float]:
        """Norms of the gradient before it is clipped; raises on every rank before anything is changed."""
        self._check_loss(loss)
        self._complete_gradient()
        try:
            return clip_gradients(self._model, largest)
        except NonFiniteLoss as error:
            self._zero_grad()
            raise NonFiniteLoss(
                f"optimizer step {self._steps}: {error} (loss {loss}); no step was made"
            ) from error

    def _check_loss(self, loss: float) -> None:
        """Drop the gradient and raise :class:`NonFiniteLoss` unless the loss, of all ranks, is finite."""
        if not math.isfinite(loss):
            self._zero_grad()
            raise NonFiniteLoss(
                f"optimizer step {self._steps}: the loss is {loss}; no step was made"
            )

    def _same_vocabulary(self, key: str, folder: Any, model: Any) -> None:
        if model.vocabulary != self._model.vocabulary:
            raise UserError(
                f"{key} {folder} has a vocabulary of {model.vocabulary}, the trained model one of "
                f"{self._model.vocabulary}: their tokens differ"
            )


def _added(parts: Any) -> dict[str, float]:
    """Name by name, in the order of ranks."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total
