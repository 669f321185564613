"""Router replay in Megatron-Core: recorded experts are imposed on the routers of a stage, see
:mod:`astraflow_torch_weights.routers`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from astraflow_core.types.generation import RoutedExperts
from astraflow_plugin_megatron.architecture import Architecture
from astraflow_torch_weights.routers import recorded_experts


@dataclass(frozen=True, slots=True)
class ImposedExperts:
    """Experts of the tokens of a layer ``ids`` int64 ``[T · B, top_k]``, and which of them are recorded: bool
    ``[T · B, 1]``, or ``None`` if all are."""

    ids: torch.Tensor
    recorded: torch.Tensor | None


class StageRouterReplay:
    """Imposes recorded experts on the layers of one pipeline stage. With ``recompute`` each layer's router runs twice for a
    micro-batch, the second time in the backward pass, when the stage may have begun others."""

    def __init__(self, layers: Any, arch: Architecture, recompute: bool) -> None:
        self._arch, self._recompute = arch, recompute
        self._routers: list[tuple[int, LayerRouterReplay]] = []
        for layer in layers if arch.experts is not None else ():
            replay = LayerRouterReplay(recompute)
            layer.mlp.router.router_replay = replay
            self._routers.append((layer.layer_number - 1, replay))

    def impose(self, routed: RoutedExperts | None, rows: int, device: torch.device) -> None:
        """For the next micro-batch, of ``rows`` rows: ``routed`` ``[B · T, layers, top_k]`` of the layers of the whole
        model, ``None`` to let the routers choose. :class:`~astraflow_core.errors.UserError` if they are not of this model."""
        given: list[ImposedExperts | None] = [None] * self._arch.layers
        if routed is not None:
            experts = self._arch.experts
            layers, number, top_k = (
                (0, 0, 0)
                if experts is None
                else (self._arch.layers, experts.number, experts.routed)
            )
            ids, recorded = recorded_experts(routed, layers, number, top_k)
            # Megatron-Core has the tokens in the order of their places, rows inside.
            by_place = ids.view(rows, -1, *ids.shape[1:]).transpose(0, 1).flatten(0, 1).to(device)
            which = None
            if recorded is not None:
                which = recorded.view(rows, -1, 1).transpose(0, 1).flatten(0, 1).to(device)
            given = [ImposedExperts(by_place[:, layer], which) for layer in range(layers)]
        again = self._recompute and torch.is_grad_enabled()
        for layer, replay in self._routers:
            replay.set(given[layer], again)


class LayerRouterReplay:
    """What a router of Megatron-Core asks for its experts, in place of ``megatron…RouterReplay``, whose instances are
    known to the whole process."""

    def __init__(self, recompute: bool) -> None:
        self._recompute = recompute
        self._now: ImposedExperts | None = None
        self._again: deque[ImposedExperts | None] = deque()

    def set(self, imposed: ImposedExperts | None, again: bool) -> None:
        """For the next forward pass and, with ``again``, for its recomputation after those that were begun before."""
        self._now = imposed
        if again:
            self._again.append(imposed)

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Callable[..., Any] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Values of ``scores`` ``[T · B, experts]`` and experts, ``[T · B, topk]`` each: called by Megatron-Core."""
        assert default_compute_topk is not None
        # A checkpointed forward pass has no gradients; its recomputation has.
        repeated = self._recompute and torch.is_grad_enabled()
        imposed = self._again.popleft() if repeated else self._now
        if imposed is not None and imposed.recorded is None:
            return scores.gather(1, imposed.ids), imposed.ids
        values, own = default_compute_topk(
            scores, topk, num_groups=num_groups, group_topk=group_topk
        )
        if imposed is None:
            return values, own
        assert imposed.recorded is not None
        ids = torch.where(imposed.recorded, imposed.ids, own)
        return scores.gather(1, ids), ids
