"""The mask with which a transformer reads rows that were merged into trees, and the check that a model obeys it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from astraflow_core.errors import UserError

TOLERANCE = 1e-3
FLEX = "flex_attention"
BLOCK = 128
"""Queries and keys that FlexAttention computes together."""
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


def tree_blocks(ends: torch.Tensor) -> BlockMask:
    """The same for FlexAttention, which computes only blocks in which something is seen. Memory grows with the number of blocks, not of pairs of
    nodes: a block is whole if all of its queries see all of its keys, and empty if none can, which the first and last ends determine;
    in all others :func:`tree_mask` decides for each pair."""
    batch, nodes = ends.shape
    blocks = -(-nodes // BLOCK)
    first = torch.arange(blocks, device=ends.device) * BLOCK
    last = (first + BLOCK).clamp(max=nodes) - 1
    of_block = torch.nn.functional.pad(ends, (0, blocks * BLOCK - nodes)).view(
        batch, 1, blocks, BLOCK
    )
    queries, keys = (first[:, None], last[:, None]), (first, last)
    lowest, highest = of_block.amin(-1)[:, :, None], of_block.amax(-1)[:, :, None]
    whole = (keys[1] <= queries[0]) & (lowest > queries[1])
    seen = (keys[0] <= queries[1]) & (highest > queries[0])

    def sees(tree: Any, _head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query < ends[tree, key])

    return BlockMask.from_kv_blocks(
        *_listed(seen & ~whole), *_listed(whole), BLOCK_SIZE=BLOCK, mask_mod=sees,
        seq_lengths=(nodes, nodes),
    )  # fmt: skip


def _listed(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many key blocks each query block has, and which; bool ``[B, 1, Q, K]``."""
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1).to(torch.int32), order.to(torch.int32)


def mask_for(ends: torch.Tensor, config: Any) -> torch.Tensor | BlockMask:
    """:func:`tree_mask` in the form that the attention of a model with this transformers configuration takes."""
    return tree_blocks(ends) if config._attn_implementation == FLEX else tree_mask(ends)


@torch.no_grad()
def obstacle_to_trees(backbone: Any, config: Any, device: torch.device) -> str:
    """Why hidden states of a tree are not those of its rows, or nothing if they are: layers may look at a window of neighbours, or
    carry a state along. ``config`` is the transformers configuration of ``backbone``."""
    config = config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds and getattr(config, "sliding_window", None) is not None:
        kinds = {"sliding_attention"}
    if others := sorted(kinds - {"full_attention"}):
        return f"it has layers of {', '.join(others)}"
    tree = torch.tensor([_IDS], device=device) % config.vocab_size
    merged = backbone(
        input_ids=tree,
        position_ids=torch.tensor([_DEPTHS], device=device),
        attention_mask=mask_for(torch.tensor([_ENDS], device=device), config),
        use_cache=False,
    ).last_hidden_state[0]
    for row, path in zip(_ROWS, _PATHS, strict=True):
        ids = torch.tensor([row], device=device) % config.vocab_size
        alone = backbone(input_ids=ids, use_cache=False).last_hidden_state[0]
        if not torch.allclose(merged[list(path)], alone, rtol=TOLERANCE, atol=TOLERANCE):
            return f"{type(backbone).__name__} ignores the mask or the positions of tokens"
    return ""


def check_trees(backbone: Any, config: Any, device: torch.device, folder: Path) -> None:
    """:class:`UserError` if there is an obstacle with the model in ``folder``."""
    if why := obstacle_to_trees(backbone, config, device):
        raise UserError(
            f"layout = 'tree' cannot be used with the model in {folder}: {why}, and the tokens before one are not its "
            "neighbours in a tree; set layout = 'auto'"
        )
