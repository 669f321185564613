"""How the tokens of a row are shared by ranks, without the ranks: each emulated in turn."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from fsdp_cases import make_batch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    Lfm2Config,
    LlamaConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from astraflow_core.errors import UserError
from astraflow_plugin_fsdp import context_parallel
from astraflow_plugin_fsdp.context_attention import attend, attend_piece
from astraflow_plugin_fsdp.context_layout import TokenSpan, columns, own, padded, pieces
from astraflow_plugin_fsdp.sharding import _layers
from astraflow_training.micro_batches import micro_batches

SIZES: dict[str, Any] = {
    "vocab_size": 11, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
ROWS = np.array([[0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5, 6]])
"""Position ids of packed rows of 4, 1 and 7 tokens."""


@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 8),
    budget=st.integers(1, 80),
    ranks=st.integers(1, 5),
    packed=st.booleans(),
)
def test_every_position_is_predicted_by_one_rank_from_the_same_token(
    seed: int, rows: int, budget: int, ranks: int, packed: bool
) -> None:
    batch = make_batch(seed, rows)
    wanted = np.ones(len(batch.tokens), np.bool_)
    for micro in micro_batches(batch, wanted, budget, packed):
        whole = padded(micro, ranks)
        assert 0 <= whole.input_ids.shape[1] - micro.input_ids.shape[1] < 2 * ranks
        ids, width = whole.input_ids, whole.input_ids.shape[1]
        before = micro.input_ids.reshape(-1)[micro.states]
        assert (ids.reshape(-1)[whole.states] == before).all()
        seen = []
        for rank in range(ranks):
            part, mine = own(whole, rank, ranks)
            theirs = columns(width, rank, ranks)
            assert (ids[:, theirs].reshape(-1)[part.states] == before[mine]).all()
            assert (part.positions == micro.positions[mine]).all()
            assert (part.row == micro.row[mine]).all()
            if packed:
                assert whole.position_ids is not None and micro.position_ids is not None
                places = whole.position_ids[0, theirs][part.states]
                assert (places == micro.position_ids[0][micro.states[mine]]).all()
            seen += mine.tolist()
        assert sorted(seen) == list(range(len(micro.positions)))


def causal(width: int, packed: np.ndarray | None, window: int | None = None) -> np.ndarray:
    """Which key each query sees: bool ``[width, width]``."""
    query, key = np.mgrid[:width, :width]
    seen: np.ndarray = key <= query
    if packed is not None:
        row = np.cumsum(packed[0] == 0)
        seen &= row[query] == row[key]
    return seen if window is None else seen & (key > query - window)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("packed", [None, ROWS], ids=["rows", "packed"])
def test_pieces_are_the_causal_mask(ranks: int, packed: np.ndarray | None) -> None:
    expected, pairs = causal(12, packed), []
    for rank in range(ranks):
        mine = columns(12, rank, ranks)
        got = np.zeros((len(mine), 12), np.bool_)
        for piece in pieces(12, rank, ranks, packed):
            queries, keys = np.arange(12)[piece.queries], np.arange(12)[piece.keys]
            late = len(keys) - len(queries)
            got[np.ix_(queries, keys)] = np.tri(len(queries), len(keys), late, np.bool_)
        assert (got == expected[mine]).all()
        pairs.append(int(got.sum()))
    if packed is None:
        assert len(set(pairs)) == 1  # each rank has as much to do as the others


@pytest.mark.parametrize("window", [None, 3, 20])
@pytest.mark.parametrize("packed", [None, ROWS], ids=["rows", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [6, 8])
def test_ranks_attend_as_one_does(
    window: int | None, packed: np.ndarray | None, dtype: torch.dtype, width: int
) -> None:
    rng = np.random.default_rng(3)
    query = torch.from_numpy(rng.normal(size=(1, 4, 12, 8))).to(dtype)
    key = torch.from_numpy(rng.normal(size=(1, 2, 12, 8))).to(dtype)
    value = torch.from_numpy(rng.normal(size=(1, 2, 12, width))).to(dtype)
    heads = [x.double().numpy().repeat(4 // x.shape[1], axis=1) for x in (query, key, value)]
    scores = 0.3 * heads[0] @ heads[1].swapaxes(2, 3)
    scores = np.where(causal(12, packed, window), np.exp(scores), 0)
    expected = scores / scores.sum(axis=-1, keepdims=True) @ heads[2]
    for rank in range(2):
        mine = columns(12, rank, 2)
        parts = [
            attend_piece(query[:, :, mine], key, value, piece, 0.3, window)
            for piece in pieces(12, rank, 2, packed)
        ]
        got = torch.cat(parts, dim=2)
        near = 1e-6 if dtype == torch.float32 else 0.03
        np.testing.assert_allclose(got.double(), expected[:, :, mine], rtol=0, atol=near)


@pytest.mark.parametrize("packed", [None, ROWS], ids=["rows", "packed"])
def test_gradients_of_ranks_add_up_to_those_of_one(packed: np.ndarray | None) -> None:
    rng = np.random.default_rng(4)
    shapes = ((1, 4, 12, 8), (1, 2, 12, 8), (1, 2, 12, 8))
    leaves = [torch.from_numpy(rng.normal(size=shape)).requires_grad_() for shape in shapes]
    weight = torch.from_numpy(rng.normal(size=shapes[0]))
    query, key, value = (x.repeat_interleave(4 // x.shape[1], dim=1) for x in leaves)
    seen = torch.from_numpy(causal(12, packed))
    scores = (0.3 * query @ key.transpose(2, 3)).masked_fill(~seen, -torch.inf)
    expected = torch.autograd.grad((scores.softmax(-1) @ value * weight).sum(), leaves)
    found = [torch.zeros_like(x) for x in leaves]
    for rank in range(2):
        mine = columns(12, rank, 2)
        given = [x.detach().float().requires_grad_() for x in leaves]
        parts = [
            attend_piece(given[0][:, :, mine], given[1], given[2], piece, 0.3, None)
            for piece in pieces(12, rank, 2, packed)
        ]
        loss = (torch.cat(parts, dim=2) * weight[:, :, mine].float()).sum()
        for total, part in zip(found, torch.autograd.grad(loss, given), strict=True):
            total += part
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("window", [None, 32])
def test_what_is_kept_for_a_backward_pass_does_not_grow_with_the_square_of_the_tokens(
    window: int | None,
) -> None:
    def kept(tokens: int) -> int:
        """Numbers saved by a rank that has the first and the last of four chunks."""
        sizes: list[int] = []
        query, key = (torch.zeros(1, 1, n, 8, requires_grad=True) for n in (tokens // 2, tokens))
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: sizes.append(tensor.numel()), lambda _: None
        ):
            for piece in pieces(tokens, 0, 2, None):
                attend_piece(query, key, key, piece, None, window)
        return sum(sizes)

    assert kept(2048) <= 2.1 * kept(1024)


def test_a_window_leaves_out_keys_that_no_one_sees() -> None:
    query, keys = torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 12, 2)
    keys[:, :, :7] = torch.nan
    piece = TokenSpan(slice(2, 4), slice(0, 10))
    seen = attend_piece(query, keys, torch.ones_like(keys), piece, None, 2)
    assert (seen == 1).all()


def test_a_model_that_keeps_arguments_to_itself_is_refused() -> None:
    tensor = torch.zeros(1, 1, 2, 2)
    with pytest.raises(UserError, match="Identity does not receive its tokens"):
        attend(torch.nn.Identity(), tensor, tensor, tensor, None)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Qwen3Config(**SIZES), None),
        (Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1), None),
        (LlamaConfig(**SIZES), None),
        (Qwen3MoeConfig(**SIZES, num_experts=2, moe_intermediate_size=8), None),
        (GPT2Config(n_layer=1, n_embd=8, n_head=2), "GPT2LMHeadModel differ in .*attn.c_attn"),
        (Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]), "Lfm2ForCausalLM differ in"),
        (
            LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
            "differ in dynamic: set context_parallel = 1",
        ),
    ],
    ids=["qwen3", "sliding", "llama", "experts", "gpt2", "convolution", "dynamic"],
)  # fmt: skip
def test_what_tokens_cannot_be_shared_of_is_refused(config: Any, said: str | None) -> None:
    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(config)
    with pytest.raises(UserError, match=said) if said else contextlib.nullcontext():
        context_parallel.check(whole, _layers(whole))
