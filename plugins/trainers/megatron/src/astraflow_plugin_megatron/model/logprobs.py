"""Log-probs, entropy and gradients by the logits of tokens from logits whose vocabulary is split over tensor parallel ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 1 << 26
"""Most logits of one chunk on one rank (256 MiB in float32)."""


def token_logprobs(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    vocabulary: int,
    group: dist.ProcessGroup,
    with_entropy: bool,
    logits_at_once: int = LOGITS_AT_ONCE,
    with_gradients: bool = False,
) -> torch.Tensor:
    """Log-probs of ``targets`` (int64 ``[n]``) under ``head(hidden) / temperature`` and, if asked for, the
    entropy in nats of each distribution: float32 ``[1, n]`` or ``[2, n]``, differentiable, the same on all
    ranks of ``group``. ``with_gradients``: instead of both what
    :func:`astraflow_torch_training.logprobs.logit_gradients` gives, ``[1, n]``.

    ``hidden`` is ``[n, H]``; ``head`` gives this rank's part of the logits, ``[·, v]``, the parts together
    being at least the ``vocabulary``; what is beyond it is padding. If there are several chunks, the logits
    of each are computed again in the backward pass.
    """
    rank, width = dist.get_rank(group), -(-vocabulary // dist.get_world_size(group))
    first = rank * width

    def chunk(states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        logits = head(states).float()
        if temperature != 1.0:
            logits = logits / temperature
        if (padding := first + logits.shape[-1] - vocabulary) > 0:
            lowest = torch.finfo(logits.dtype).min / 4
            logits = torch.nn.functional.pad(logits[:, :-padding], (0, padding), value=lowest)
        return _distributed(logits, wanted - first, group, with_entropy, with_gradients)

    size = max(1, logits_at_once // width)
    if len(targets) <= size:
        return chunk(hidden, targets)
    parts = [
        checkpoint(chunk, states, wanted, use_reentrant=False)
        for states, wanted in zip(
            torch.split(hidden, size), torch.split(targets, size), strict=True
        )
    ]
    return torch.cat(parts, 1)


def _distributed(
    logits: torch.Tensor,
    wanted: torch.Tensor,
    group: dist.ProcessGroup,
    with_entropy: bool,
    with_gradients: bool,
) -> torch.Tensor:
    """Vocabulary-parallel softmax as in Megatron-LM (Shoeybi et al. 2019, §3): the largest logit and two
    sums travel, never the logits. Every rank continues with the same sums, so that the gradient of a sum is
    that of this rank's part in it.
    """
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    logits = logits - largest[:, None]
    here = (wanted >= 0) & (wanted < logits.shape[-1])
    picked = logits.gather(1, torch.where(here, wanted, 0)[:, None]).squeeze(1)
    exps = logits.exp()
    if with_gradients:
        total = reduce_from_tensor_model_parallel_region(exps.sum(-1), group=group)
        away = exps / total[:, None]
        # e - p, whose square has no cancellation where p is near 1.
        away.scatter_add_(1, torch.where(here, wanted, 0)[:, None], -here[:, None].to(away.dtype))
        square = away.square().sum(-1)[None]
        whole: torch.Tensor = reduce_from_tensor_model_parallel_region(square, group=group)
        return whole
    sums = [exps.sum(-1), torch.where(here, picked, 0.0)]
    if with_entropy:
        sums.append((exps * logits).sum(-1))
    total, chosen, *weighted = reduce_from_tensor_model_parallel_region(
        torch.stack(sums), group=group
    ).unbind()
    log_total = total.log()
    return torch.stack([chosen - log_total, *(log_total - each / total for each in weighted)])
