"""The mask with which a transformer reads rows that were merged into trees, and the check that a model obeys it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from astraflow_core.errors import UserError

TOLERANCE = 1e-3
_ROWS = ((1, 2, 3, 4), (1, 2, 3, 5), (1, 6))
_IDS, _DEPTHS, _ENDS = (1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 3, 1), (6, 5, 5, 4, 5, 6)
_PATHS = ((0, 1, 2, 3), (0, 1, 2, 4), (0, 5))
"""The same rows as a tree."""


def tree_mask(ends: torch.Tensor) -> torch.Tensor:
    """What each node sees: bool ``[B, 1, T, T]``, of ``ends`` int64 ``[B, T]``, the index after the last node below each (see
    :class:`astraflow_training.micro_batches.MicroBatch`)."""
    index = torch.arange(ends.shape[1], device=ends.device)
    seen = (index <= index[:, None]) & (index[:, None] < ends[:, None, :])
    return seen[:, None]


@torch.no_grad()
def check_trees(backbone: Any, config: Any, device: torch.device, folder: Path) -> None:
    """:class:`UserError` if hidden states of a tree are not those of its rows: of layers that look at a window of
    neighbours, or that carry a state along. ``config`` is the transformers configuration of ``backbone``."""
    kinds = set(getattr(config, "layer_types", None) or ())
    windowed = not kinds and getattr(config, "sliding_window", None) is not None
    wrong = sorted(kinds - {"full_attention"}) or (["sliding_attention"] if windowed else [])
    if not wrong:
        vocabulary = config.vocab_size
        tree = torch.tensor([_IDS], device=device) % vocabulary
        merged = backbone(
            input_ids=tree,
            position_ids=torch.tensor([_DEPTHS], device=device),
            attention_mask=tree_mask(torch.tensor([_ENDS], device=device)),
            use_cache=False,
        ).last_hidden_state[0]
        for row, path in zip(_ROWS, _PATHS, strict=True):
            ids = torch.tensor([row], device=device) % vocabulary
            alone = backbone(input_ids=ids, use_cache=False).last_hidden_state[0]
            if not torch.allclose(merged[list(path)], alone, rtol=TOLERANCE, atol=TOLERANCE):
                wrong = [f"layers of {type(backbone).__name__} that ignore a mask"]
    if wrong:
        raise UserError(
            f"layout = 'tree' cannot be used with the model in {folder}: it has {', '.join(wrong)}, and tokens of a tree "
            "are not neighbours of those before them; set layout = 'auto'"
        )
