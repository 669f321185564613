"""A model whose rows are shared by several ranks token by token: each computes its own, and all know what all predict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from astraflow_core.errors import UserError
from astraflow_plugin_fsdp.context_attention import Context
from astraflow_plugin_fsdp.context_layout import columns, pieces
from astraflow_training.micro_batches import Indices

PROJECTIONS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"})
LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
LENGTH_DEPENDENT = frozenset({"dynamic", "longrope"})
"""Rotary embeddings that look for the longest row, which each rank sees a part of."""


def check(whole: Any, layers: Iterable[Any]) -> None:
    """Refuse (:class:`UserError`) a model with layers in which a token may look at others but by the attention
    of Qwen3 or Llama."""
    strange: set[str] = set()
    found = list(layers)
    for layer in found:
        names = {name for name, p in layer.named_parameters() if not _is_known(name, p)}
        strange |= names or ({"self_attn"} - {name for name, _ in layer.named_children()})
        config = getattr(getattr(layer, "self_attn", None), "config", None)
        strange |= set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES
        strange |= _rotary_types(config) & LENGTH_DEPENDENT
    if strange or not found:
        raise UserError(
            f"context_parallel supports layers like those of Qwen3 and Llama; those of {type(whole).__name__} differ in "
            f"{', '.join(sorted(strange)) or 'their names'}: set context_parallel = 1"
        )


def _is_known(name: str, parameter: torch.Tensor) -> bool:
    part, _, rest = name.partition(".")
    if part == "self_attn":
        return rest.partition(".")[0] in PROJECTIONS
    return part == "mlp" or parameter.ndim == 1


def _rotary_types(config: Any) -> set[str]:
    """One, or one for each type of layer."""
    given = getattr(config, "rope_parameters", None) or {}
    each = [given, *(value for value in given.values() if isinstance(value, dict))]
    return {str(parameters["rope_type"]) for parameters in each if "rope_type" in parameters}


@dataclass(frozen=True, slots=True)
class SplitBackbone:
    """``backbone`` on this rank's tokens: it takes those of all ranks of ``group`` and returns the hidden states of
    its own tokens, ``[B, t, H]``."""

    backbone: Any
    group: Any

    def __call__(
        self, input_ids: torch.Tensor, use_cache: bool, position_ids: torch.Tensor | None = None
    ) -> Any:
        """See :meth:`CausalLM.predict`."""
        rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        width = input_ids.shape[1]
        packed = None if position_ids is None else position_ids.cpu().numpy()
        mine = torch.from_numpy(columns(width, rank, ranks)).to(input_ids.device)
        return self.backbone(
            input_ids=input_ids.index_select(1, mine),
            position_ids=mine[None] if position_ids is None else position_ids.index_select(1, mine),
            use_cache=use_cache,
            context=Context(self.group, pieces(width, rank, ranks, packed)),
        )

    def get_input_embeddings(self) -> Any:
        """Those of the backbone."""
        return self.backbone.get_input_embeddings()


def of_all_ranks(
    parts: Iterable[torch.Tensor | None], mine: Indices, count: int, group: Any
) -> list[torch.Tensor | None]:
    """What each of the ``count`` positions of a micro-batch was predicted to be, float32 ``[count]``, from what
    this rank has predicted of those that are ``mine``, ``[m]``. Differentiable with respect to the rank's own:
    every rank makes the same loss of all, so their gradients are not summed."""
    given = list(parts)
    there = [part for part in given if part is not None]
    places = torch.from_numpy(mine).to(there[0].device)
    whole = iter(
        _Assembled.apply(torch.stack(there), places, count, group).unbind()  # type: ignore[no-untyped-call]
    )
    return [None if part is None else next(whole) for part in given]


class _Assembled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, parts: torch.Tensor, places: torch.Tensor, count: int, group: Any
    ) -> torch.Tensor:
        ctx.save_for_backward(places)
        whole = parts.new_zeros(len(parts), count)
        whole[:, places] = parts
        if count:
            dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return gradients[0].index_select(1, places), None, None, None
