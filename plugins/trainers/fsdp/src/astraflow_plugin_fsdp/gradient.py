"""The gradient of a mini-batch over the ranks, each of which has a share of its rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch
from astraflow_plugin_fsdp.sharding import ShardedLM
from astraflow_torch_training.gradient import Tally, forward
from astraflow_torch_training.model import TokenPrediction
from astraflow_training.micro_batches import MicroBatch


class Boundary:
    """A model whose predictions are leaves: the graph of the loss ends at them.

    Its backward pass thus goes through the model whatever terms the loss has. The sums of gradients are
    collectives, in which a rank must not be missing because its rows had no part in a term.
    """

    def __init__(self, model: ShardedLM) -> None:
        self._model = model
        self.device = model.device
        self._ends: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.reached_policy = self.reached_critic = False
        """Whether a loss had a gradient with respect to what the policy, or the critic, said."""

    def predict(
        self,
        micro: MicroBatch,
        targets: torch.Tensor,
        temperature: float,
        with_entropy: bool = False,
        with_values: bool = False,
    ) -> TokenPrediction:
        """See :meth:`CausalLM.predict`; :meth:`backward` has to follow."""
        said = self._model.predict(micro, targets, temperature, with_entropy, with_values)
        logprobs, entropy, values = (
            self._leaf(part) for part in (said.logprobs, said.entropy, said.values)
        )
        assert logprobs is not None
        self._policy, self._values = (logprobs, entropy), values
        return TokenPrediction(logprobs, entropy, values)

    def _leaf(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None:
            return None
        leaf = tensor.detach().requires_grad_()
        self._ends.append((tensor, leaf))
        return leaf

    def backward(self, total: torch.Tensor | None) -> None:
        """Add the gradient of ``total``, of none if there is no loss."""
        if total is not None and total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call]
        self.reached_policy |= any(p is not None and p.grad is not None for p in self._policy)
        self.reached_critic |= self._values is not None and self._values.grad is not None
        ends, self._ends = self._ends, []
        torch.autograd.backward(
            [tensor for tensor, _ in ends],
            [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for _, leaf in ends],
        )


def accumulate(
    model: ShardedLM,
    batch: Batch,
    algorithm: Algorithm,
    step: int,
    parts: Sequence[MicroBatch],
    tally: Tally,
    reduce_each: bool,
    backward: bool = True,
) -> Boundary:
    """Add to the parameters' ``grad`` this rank's part of the sum of all ranks' gradients; none without ``backward``.

    ``batch`` is the share of this rank, ``parts`` as many micro-batches as every rank has. ``tally`` as for
    :func:`astraflow_torch_training.gradient.accumulate`, of this rank alone. What the ranks
    that share layers have of norms and embeddings is not added up.
    """
    boundary = Boundary(model)
    for number, micro in enumerate(parts, 1):
        if number in (1, len(parts)):
            last = number == len(parts)
            model.whole.set_requires_gradient_sync(reduce_each or last)
            model.whole.set_is_last_backward(last)
            model.whole.set_reshard_after_backward(last or not model.one_shard)
        total = None
        with tally.clock("forward_s"):
            if micro.rows:
                total, _ = forward(boundary, batch, algorithm, step, micro, tally)
            else:
                nothing = torch.zeros(0, dtype=torch.int64, device=model.device)
                boundary.predict(
                    micro, nothing, 1.0, "entropy" in algorithm.needs, "values" in algorithm.needs
                )
        with tally.clock("backward_s"):
            if backward:
                boundary.backward(total)
    return boundary
