"""The routers of a transformers model with experts: what they chose, and how another's choices are imposed on them.

That is router replay (R3, "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers", Ma et al.
2025, arXiv 2510.11370; the mode ``R3`` of verl): the experts are the recorded ones, their weights come from the logits of
the model at hand, so that the router is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from astraflow_core.errors import UserError
from astraflow_core.types.generation import RoutedExperts, not_recorded, routing_dtype

_T = TypeVar("_T")
ROUTERS = frozenset(
    {"MixtralTopKRouter", "OlmoeTopKRouter", "Qwen2MoeTopKRouter", "Qwen3MoeTopKRouter"}
)
"""Classes that give (logits, weights, chosen experts) of each token, and choose by one ``torch.topk`` over all experts."""


def routers_of(model: Any) -> list[Any]:
    """The routers of the layers of a model, in their order; none if it has no experts, or others than :data:`ROUTERS`."""
    return [module for module in model.modules() if type(module).__name__ in ROUTERS]


class RouterRecorder:
    """Records what the routers of a model choose in single calls; the model costs what it did before the first one."""

    def __init__(self, model: Any) -> None:
        self._routers = routers_of(model)
        self._chosen: list[torch.Tensor] | None = None
        self._hooked = False

    def check(self) -> None:
        """:class:`UserError` if there is nothing to record."""
        if not self._routers:
            raise UserError(
                "the model has no experts, or its routers are not known, so their choices cannot be recorded; known are: "
                f"{', '.join(sorted(ROUTERS))}"
            )

    def during(self, run: Callable[[], _T]) -> tuple[_T, RoutedExperts]:
        """What ``run`` returns, which makes one forward pass, and the experts of all inputs, padding included:
        ``[inputs, layers, top_k]``."""
        self.begin()
        try:
            return run(), self.taken()
        finally:
            self._chosen = None

    def begin(self) -> None:
        """Record the next forward pass, for :meth:`taken`."""
        if not self._hooked:
            self._hooked = True
            for router in self._routers:
                router.register_forward_hook(self._keep)
        self._chosen = []

    @property
    def recording(self) -> bool:
        """Whether :meth:`begin` was called and :meth:`taken` was not."""
        return self._chosen is not None

    def taken(self) -> RoutedExperts:
        """The experts of all inputs of the pass since :meth:`begin`; recording then ends."""
        chosen, self._chosen = self._chosen, None
        assert chosen is not None, "begin() comes first"
        ids = torch.stack(chosen, 1).cpu().numpy()
        return ids.astype(routing_dtype(self._routers[0].num_experts))

    def _keep(self, router: Any, inputs: Any, outputs: Any) -> None:
        if self._chosen is not None:
            self._chosen.append(outputs[2])


def recorded_experts(
    routed: RoutedExperts, layers: int, experts: int, top_k: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What is to be imposed of ``routed`` ``[inputs, layers, top_k]``: int64 of this shape, and which inputs are recorded,
    bool ``[inputs, 1]``, or ``None`` if all are. :class:`UserError` unless they are of a model of ``layers`` layers, each with
    ``experts`` experts, that chooses ``top_k``; 0 of each if it has none."""
    recorded = (routed != not_recorded(routed.dtype)).all((1, 2))
    largest = int(routed[recorded].max(initial=0))
    if routed.shape[1:] != (layers, top_k) or largest >= max(1, experts):
        raise UserError(
            f"recorded experts of {routed.shape[1]} layers, {routed.shape[2]} of each and up to number {largest}, do not "
            f"fit the model, which has {layers} layers with {experts} experts and chooses {top_k}"
        )
    ids = torch.from_numpy(routed.astype(np.int64))
    return ids, None if recorded.all() else torch.from_numpy(recorded)[:, None]


class RouterReplay:
    """Imposes recorded choices on the routers of a model. A copy of the model has its own, which imposes nothing."""

    def __init__(self, model: Any) -> None:
        self._imposed: list[_Imposed] = []
        for router in routers_of(model):
            self._imposed.append(_Imposed())
            router.register_forward_hook(self._imposed[-1])
        self._experts = 0 if not self._imposed else int(routers_of(model)[0].num_experts)
        self._top_k = 0 if not self._imposed else int(routers_of(model)[0].top_k)

    def impose(self, routed: RoutedExperts | None, device: torch.device) -> None:
        """From the next forward pass on, and when its activations are computed again: on input ``i`` of all inputs
        the experts ``routed[i]`` ``[layers, top_k]``; ``None``, or a token without a record: the router's own.

        :class:`UserError` if they are not of this model."""
        if routed is None:
            for each in self._imposed:
                each.clear()
            return
        ids, which = recorded_experts(routed, len(self._imposed), self._experts, self._top_k)
        ids, which = ids.to(device), None if which is None else which.to(device)
        for layer, each in enumerate(self._imposed):
            each.set(ids[:, layer], which)


class _Imposed:
    """A forward hook of a router: gives its output anew with the experts that are set, if any are."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._ids: torch.Tensor | None = None
        self._recorded: torch.Tensor | None = None

    def set(self, ids: torch.Tensor, recorded: torch.Tensor | None) -> None:
        self._ids, self._recorded = ids, recorded

    def __call__(self, router: Any, inputs: Any, outputs: Any) -> Any:
        if self._ids is None:
            return None
        with _Chosen(self._ids, self._recorded):
            return type(router).forward(router, *inputs)

    def __deepcopy__(self, memo: Any) -> _Imposed:
        return _Imposed()


class _Chosen(TorchFunctionMode):
    """In its context ``torch.topk`` gives the values of given indices: the model's own code makes weights of them."""

    def __init__(self, ids: torch.Tensor, recorded: torch.Tensor | None) -> None:
        super().__init__()
        self._ids, self._recorded = ids, recorded

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is not torch.topk:
            return func(*args, **(kwargs or {}))
        ids = self._ids
        if self._recorded is not None:
            ids = torch.where(self._recorded, ids, func(*args, **(kwargs or {}))[1])
        return args[0].gather(-1, ids), ids
