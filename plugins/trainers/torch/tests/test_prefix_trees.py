"""Trees: every wanted token is predicted once after its own tokens, and none is computed twice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask
from trainer_cases import make_batch, make_branches
from transformers import LlamaConfig, MistralConfig, MistralModel, Qwen3Config, Qwen3Model

from astraflow_core.errors import UserError
from astraflow_core.types import Batch
from astraflow_torch_training.trees import BLOCK, check_trees, tree_blocks, tree_mask
from astraflow_training.micro_batches import MicroBatch, PredictedTokens
from astraflow_training.prefix_trees import prefix_trees, tree_micro_batches
from astraflow_training.shares import even_micro_batches


def seen_by(micro: MicroBatch, state: int) -> tuple[list[int], list[int]]:
    """The tokens that a state sees, in order, and the depths of their nodes."""
    width = micro.input_ids.shape[1]
    tree, node = divmod(state, width)
    if micro.ends is None or micro.position_ids is None:  # as any causal model does
        return micro.input_ids[tree, : node + 1].tolist(), list(range(node + 1))
    mask = tree_mask(torch.from_numpy(micro.ends))[tree, 0, node].numpy()
    return micro.input_ids[tree, mask].tolist(), micro.position_ids[tree, mask].tolist()


@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 14),
    budget=st.integers(1, 80),
)
def test_every_wanted_token_is_predicted_once_after_its_own_tokens(
    seed: int, rows: int, budget: int
) -> None:
    batch = make_branches(seed, rows)
    found: list[int] = []
    for micro in tree_micro_batches(batch, batch.loss_mask, budget):
        assert len(micro.input_ids) == 1 or micro.computed <= budget
        rows_of = batch.row_of_token[micro.positions]
        assert len(set(zip(rows_of.tolist(), micro.row.tolist(), strict=True))) == micro.rows
        for position, state in zip(micro.positions.tolist(), micro.states.tolist(), strict=True):
            start = int(batch.offsets[batch.row_of_token[position]])
            tokens, depths = seen_by(micro, state)
            assert tokens == batch.tokens[start:position].tolist()
            assert depths == list(range(position - start))
            found.append(position)
    assert sorted(found) == np.flatnonzero(batch.loss_mask).tolist()


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 14))
def test_a_tree_has_each_beginning_once(seed: int, rows: int) -> None:
    """Counted as a set of beginnings, of rows that are in one tree."""
    batch = make_branches(seed, rows)
    predicted = PredictedTokens.of(batch, batch.loss_mask)
    for tree in prefix_trees(batch, predicted.rows, predicted.inputs, 1000):
        beginnings = {
            tuple(batch.tokens[batch.offsets[row] : batch.offsets[row] + length].tolist())
            for row in tree.rows.tolist()
            for length in range(1, int(predicted.inputs[row]) + 1)
        }
        assert len(tree.ids) == len(beginnings)


def group_of_samples(prompt: int, completions: int, length: int) -> Batch:
    """Samples of one prompt, of which the completions are trained."""
    rng = np.random.default_rng(0)
    batch = make_batch(rows=completions)
    first = rng.integers(1, 20, prompt)
    rest = rng.integers(1, 20, (completions, length))
    rest[:, 0] = np.arange(completions)
    rows = [np.concatenate([first, end]) for end in rest]
    fields = {
        name: np.tile(getattr(batch, name)[:1], completions * (prompt + length))
        for name in ("logprobs", "versions")
    }
    mask = np.tile(np.arange(prompt + length) >= prompt, completions)
    return Batch(
        **{name: getattr(batch, name) for name in ("id", "policy", "version", "rewards", "group", "trajectory", "temperature", "group_size", "group_mean", "group_std")},
        lengths=np.full(completions, prompt + length, np.int32),
        tokens=np.concatenate(rows).astype(np.int32),
        loss_mask=mask,
        **fields,
    )  # fmt: skip


def test_samples_share_their_prompt() -> None:
    batch = group_of_samples(prompt=40, completions=8, length=6)
    (micro,) = tree_micro_batches(batch, batch.loss_mask, 1000)
    assert micro.tokens == micro.computed == 40 + 8 * 5  # the last token of each is predicted only


def test_long_completions_of_a_short_prompt_stay_apart() -> None:
    """Each would see all tokens of the others through a mask."""
    batch = group_of_samples(prompt=4, completions=8, length=30)
    (micro,) = tree_micro_batches(batch, batch.loss_mask, 1000)
    assert micro.input_ids.shape == (8, 33) and micro.ends is None


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_have_whole_trees_and_together_all_rows(ranks: int) -> None:
    batch = make_branches(3, 14)
    alone = sum(m.tokens for m in tree_micro_batches(batch, batch.loss_mask, 60))
    shares = [
        even_micro_batches(batch, batch.loss_mask, 60, "tree", r, ranks) for r in range(ranks)
    ]
    assert sorted(np.concatenate([share.rows for share, _ in shares]).tolist()) == list(range(14))
    assert len({len(parts) for _, parts in shares}) == 1
    assert sum(micro.tokens for _, parts in shares for micro in parts) == alone
    found = [share.tokens[m.positions] for share, parts in shares for m in parts]
    assert sorted(np.concatenate(found).tolist()) == np.flatnonzero(batch.loss_mask).tolist()


SMALL: dict[str, Any] = {
    "vocab_size": 30, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip


def test_models_that_look_at_a_window_are_refused() -> None:
    config = MistralConfig(**SMALL, sliding_window=8)
    with pytest.raises(UserError, match=r"'tree'.*/m.*sliding_attention.*layout = 'auto'"):
        check_trees(MistralModel(config), config, torch.device("cpu"), Path("/m"))
    mixed = Qwen3Config(**SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    with pytest.raises(UserError, match="sliding_attention"):
        check_trees(Qwen3Model(mixed), mixed, torch.device("cpu"), Path("/m"))


def test_models_that_ignore_the_mask_are_refused() -> None:
    """A running sum is what a recurrent layer would make of a tree."""

    def summed(input_ids: torch.Tensor, **_: Any) -> Any:
        return SimpleNamespace(last_hidden_state=input_ids.cumsum(1)[..., None].float())

    with pytest.raises(UserError, match="ignores the mask"):
        check_trees(summed, LlamaConfig(**SMALL), torch.device("cpu"), Path("/m"))
    config = Qwen3Config(**SMALL)
    check_trees(Qwen3Model(config), config, torch.device("cpu"), Path("/m"))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000), nodes=st.integers(1, 3 * BLOCK + 7), branching=st.floats(0, 0.3)
)
def test_blocks_see_what_the_mask_says(seed: int, nodes: int, branching: float) -> None:
    """Pair by pair; a block counts as whole, or as empty, only if it is."""
    ends = torch.from_numpy(np.stack([random_ends(seed + i, nodes, branching) for i in range(2)]))
    mask, blocks = tree_mask(ends), tree_blocks(ends)
    assert torch.equal(create_mask(blocks.mask_mod, 2, None, nodes, nodes, "cpu"), mask)
    queries = range(-(-nodes // BLOCK))
    for tree in range(2):
        for query in queries:
            rows = mask[tree, 0, query * BLOCK : (query + 1) * BLOCK]
            partial = listed(blocks.kv_indices, blocks.kv_num_blocks, tree, query)
            whole = listed(blocks.full_kv_indices, blocks.full_kv_num_blocks, tree, query)
            assert not partial & whole
            for key in queries:
                block = rows[:, key * BLOCK : (key + 1) * BLOCK]
                assert key not in whole or bool(block.all())
                assert key in partial | whole or not bool(block.any())


def listed(indices: Any, counts: Any, tree: int, query: int) -> set[int]:
    return set(indices[tree, 0, query, : int(counts[tree, 0, query])].tolist())


def random_ends(seed: int, nodes: int, branching: float) -> npt.NDArray[np.int64]:
    """Of a tree in the order of a walk through it: where the nodes below each end."""
    random = np.random.default_rng(seed)
    ends = np.full(nodes, nodes)
    path = [0]
    for node in range(1, nodes):
        if random.random() < branching:
            keep = int(random.integers(1, len(path) + 1))
            ends[path[keep:]] = node
            path = path[:keep]
        path.append(node)
    return ends
