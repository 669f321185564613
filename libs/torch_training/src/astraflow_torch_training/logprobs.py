"""Log-probs, entropy and gradients by the logits of tokens from hidden states, in chunks that bound the memory for logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 1 << 26
"""Most logits of one chunk (256 MiB in float32)."""


def token_logprobs(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    vocabulary: int,
    with_entropy: bool,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs of ``targets`` (int64 ``[n]``) under ``head(hidden) / temperature``, and the entropy in
    nats of each distribution if asked for: float32 ``[n]`` each, differentiable.

    ``hidden`` is ``[n, H]``, ``head`` gives ``[·, V]``. If there are several chunks, the logits of each are
    computed again in the backward pass instead of being kept.
    """
    size = max(1, logits_at_once // vocabulary)
    if len(targets) <= size:
        logprobs, entropy = _chunk(head, hidden, targets, temperature, with_entropy)
        return logprobs, entropy if with_entropy else None
    parts = [
        checkpoint(_chunk, head, h, t, temperature, with_entropy, use_reentrant=False)
        for h, t in zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    ]
    logprobs = torch.cat([part[0] for part in parts])
    return logprobs, torch.cat([part[1] for part in parts]) if with_entropy else None


@torch.no_grad()
def logit_gradients(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    vocabulary: int,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> torch.Tensor:
    """Squared length of the gradient of the log-probs of ``targets`` by their logits, float32 ``[n]``: see
    :meth:`astraflow_core.protocols.trainer.GivesLogitGradients.logit_gradients`. Arguments as of :func:`token_logprobs`."""
    size = max(1, logits_at_once // vocabulary)
    found = []
    for states, wanted in zip(torch.split(hidden, size), torch.split(targets, size), strict=True):
        logits = head(states).float()
        probabilities = torch.softmax(logits / temperature, dim=-1)
        # e - p, whose square has no cancellation where p is near 1.
        probabilities.scatter_add_(1, wanted[:, None], logits.new_full((len(wanted), 1), -1.0))
        found.append(probabilities.square().sum(dim=-1))
    return torch.cat(found)


def _chunk(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    with_entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden).float()
    if temperature != 1.0:
        # By a tensor, as engines do: on CUDA a number becomes a factor, its inverse.
        logits = logits / torch.full((), temperature, dtype=logits.dtype, device=logits.device)
    distribution = torch.log_softmax(logits, dim=-1)
    logprobs = distribution.gather(1, targets[:, None]).squeeze(1)
    if not with_entropy:
        return logprobs, logprobs
    return logprobs, -(distribution.exp() * distribution).sum(dim=-1)
