"""Two ranks over gloo against trainer ``torch`` at one rank."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from fsdp_cases import (
    CONTEXT,
    DRIVEN,
    FSDP_RANKS,
    GRPO,
    LONG,
    MESHES,
    SCENARIOS,
    STEPS,
    Rank,
    same_metrics,
    same_steps,
    same_weights,
    train,
    weights,
)
from fsdp_rank import BLOCK
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

pytestmark = [FSDP_RANKS, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", SCENARIOS)
def test_steps_are_those_of_one_rank(
    name: str, one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    for found in two:
        got, expected = found[name], one[name]
        same_metrics(got["metrics"], expected["metrics"])
        same_weights(got["weights"], expected["weights"], STEPS)
        np.testing.assert_allclose(got["logprobs"], expected["logprobs"], rtol=0, atol=1e-5)
        same_steps(got, expected)


@pytest.mark.parametrize(
    "keys",
    [
        {"reduce": "each"},
        {"replicas": 2},
        {"tensor_parallel": 2},
        {"cpu_offload": True},
        {"gradient_checkpointing": True, "layout": "packed"},
        {"layout": "tree", "micro_batch_tokens": 60},
    ],
    ids=str,
)
def test_other_ways_to_the_same_steps(
    keys: dict[str, Any], one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    for found in two:
        same_metrics(found[str(keys)]["metrics"], one["qwen3"]["metrics"])
        same_weights(found[str(keys)]["weights"], one["qwen3"]["weights"], STEPS)


@pytest.mark.parametrize("keys", DRIVEN, ids=str)
def test_gradients_that_a_caller_adds_up_are_those_of_one_rank(
    keys: dict[str, Any], one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    for found in two:
        got, expected = found[f"gradients {keys}"], one["gradients"]
        same_metrics(got["metrics"], expected["metrics"])
        same_weights(got["weights"], expected["weights"], 2)


@pytest.mark.parametrize("name", CONTEXT)
def test_ranks_that_share_rows_make_the_same_steps(
    name: str, one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    for found in two:
        got, expected = found[f"context {name}"], one[name]
        same_metrics(got["metrics"], expected["metrics"])
        same_weights(got["weights"], expected["weights"], STEPS)
        np.testing.assert_allclose(got["logprobs"], expected["logprobs"], rtol=0, atol=1e-5)
        same_steps(got, expected)


def test_ranks_share_a_long_row(one: dict[str, Any], two: list[dict[str, Any]]) -> None:
    for found in two:
        got, expected = found["long row"], one["long row"]
        assert len(got["logprobs"]) == LONG and expected["metrics"][0]["grad_norm"] > 1e-3
        np.testing.assert_allclose(got["logprobs"], expected["logprobs"], rtol=0, atol=3e-5)
        same_metrics(got["metrics"], expected["metrics"])
        same_weights(got["weights"], expected["weights"], 1)


@pytest.mark.parametrize("name", ["experts", "context experts"])
def test_recorded_experts_are_those_of_the_tokens_of_each_rank(
    name: str, one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    for found in two:
        got = found[name]
        assert np.abs(got["logprobs"] - got["free"]).max() > 1e-2
        np.testing.assert_allclose(got["free"], one["experts"]["free"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("keys", MESHES, ids=str)
def test_four_ranks_in_a_mesh_make_the_same_steps(
    keys: dict[str, Any], one: dict[str, Any], four: list[dict[str, Any]]
) -> None:
    for found in four:
        same_metrics(found[str(keys)]["metrics"], one["qwen3"]["metrics"])
        same_weights(found[str(keys)]["weights"], one["qwen3"]["weights"], STEPS)
        # Sums cut within a row are rounded once more, and AdamW divides by small second moments.
        limit = 3e-5 if "context_parallel" in keys else 1e-5
        for of in ("logprobs", "logit_gradients"):
            np.testing.assert_allclose(found[str(keys)][of], one["qwen3"][of], rtol=0, atol=limit)


def test_checkpoints_go_between_a_mesh_and_one_rank(
    directory: Path, one: dict[str, Any], four: list[dict[str, Any]]
) -> None:
    for found in four:
        assert bits(found["resharded"]) == bits(one["saved"]) == bits(found["adopted"])
    trainer = Rank(directory).trainer("fsdp", "qwen3")
    trainer.load(directory / "four-ranks")
    assert bits(weights(trainer)) == bits(four[0]["saved"])
    trainer.close()


def test_adapters_beside_parts_of_layers(
    directory: Path, one: dict[str, Any], four: list[dict[str, Any]]
) -> None:
    for found in four:
        same_metrics(found["lora"]["metrics"], one["lora"]["metrics"])
        same_weights(found["lora"]["weights"], one["lora"]["weights"], STEPS)
        in_parts, whole = found["adapters"]
        assert bits(in_parts) == bits(whole)
        assert any(value.any() for name, value in whole.items() if "lora_B" in name)
    merged = [load_file(directory / n / "model.safetensors") for n in ("merged-of-parts", "merged")]
    assert bits(merged[0]) == bits(merged[1])


def test_bfloat16_is_near(one: dict[str, Any], two: list[dict[str, Any]]) -> None:
    got = two[0]["{'compute_dtype': 'bfloat16'}"]
    for mine, theirs in zip(got["metrics"], one["qwen3"]["metrics"], strict=True):
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.1)
    apart = np.abs(got["logprobs"] - one["qwen3"]["logprobs"])
    assert 1e-4 < apart.max() < 0.3
    assert all(value.dtype == np.float32 for value in got["weights"].values())


def test_a_rank_without_rows_joins_in(
    one: dict[str, Any], two: list[dict[str, Any]], four: list[dict[str, Any]]
) -> None:
    for found in (*two, *four):  # of the four two share the row
        same_metrics(found["one row"], one["one row"])
        same_weights(found["after one row"], one["after one row"], 1)


def test_the_slices_of_all_ranks_are_what_is_gathered(two: list[dict[str, Any]]) -> None:
    ways = [name for name, found in two[0].items() if isinstance(found, dict) and "shards" in found]
    assert len(ways) >= len(SCENARIOS) - 1
    for way in ways:
        expected = two[0][way]["weights"]
        got = {name: np.full(value.size, np.nan, np.float32) for name, value in expected.items()}
        for name, shape, start, bits in itertools.chain(*(found[way]["shards"] for found in two)):
            values = np.frombuffer(bits, np.float32)
            assert shape == expected[name].shape
            assert np.isnan(got[name][start : start + len(values)]).all()  # each element comes once
            got[name][start : start + len(values)] = values
        for name, value in expected.items():
            assert got[name].tobytes() == value.tobytes(), (way, name)


def test_ranks_publish_what_is_gathered_and_hold_little_more_than_their_shard(
    two: list[dict[str, Any]],
) -> None:
    found = [rank["published"] for rank in two]
    whole, size = found[0]["gathered"], found[0]["size"]
    assert found[0]["fetched"] == whole
    blocks = [xxhash.xxh3_128_digest(whole[at : at + BLOCK]) for at in range(0, size, BLOCK)]
    assert list(found[0]["blocks"]) == list(found[1]["blocks"]) == blocks
    tensors = len(two[0]["after one row"])
    for each in found:
        # Each tensor is cut once between two ranks: they share the block of the cut, and those of its ends.
        assert each["held"] < each["peak"] <= each["held"] + (2 * tensors + 1) * BLOCK
        assert each["peak"] < 0.8 * size


def test_a_rank_holds_its_shard_only(two: list[dict[str, Any]]) -> None:
    assert sum(found["held"] for found in two) == two[0]["all"]
    for found in two:
        assert 0.4 < found["held"] / found["all"] < 0.6


def computed(metrics: dict[str, float]) -> dict[str, float]:
    return {n: v for n, v in metrics.items() if not n.endswith(("_s", "_gb"))}


def test_the_steps_after_loading_are_bitwise_the_same(two: list[dict[str, Any]]) -> None:
    for found in two:
        assert found["written"]
        *through, left = found["through"]
        *resumed, right = found["resumed"]
        assert left == right
        for mine, theirs in zip(resumed, through, strict=True):
            assert computed(mine) == computed(theirs)


def bits(found: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in found.items()}


def test_a_checkpoint_of_one_rank_continues_on_two(
    one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    for found in two:
        assert bits(found["resharded"]) == bits(one["saved"]) == bits(found["adopted"])
        metrics, after = found["after resharding"]
        same_metrics(metrics, one["through"][0])
        same_weights(after, one["through"][1], 3)


def test_a_checkpoint_of_two_ranks_continues_on_one(
    directory: Path, one: dict[str, Any], two: list[dict[str, Any]]
) -> None:
    rank = Rank(directory)
    trainer = rank.trainer("fsdp", "qwen3")
    trainer.load(directory / "two-ranks")
    assert bits(weights(trainer)) == bits(two[0]["saved"])
    same_metrics(train(trainer, rank.algorithm("grpo", GRPO), [6, 7]), one["through"][0])
    same_weights(weights(trainer), one["through"][1], 3)
    trainer.close()


def test_a_loss_that_is_not_finite_is_refused_on_all_ranks(two: list[dict[str, Any]]) -> None:
    for found in two:
        assert "no step was made" in found["refused"]
        assert found["unchanged"]


def test_what_rank_0_cannot_load_is_refused_on_all_ranks(two: list[dict[str, Any]]) -> None:
    assert "lacks" in two[0]["broken"]
    assert two[1]["broken"].startswith("rank 0: ")
    assert "lacks" in two[1]["broken"]


def test_a_checkpoint_of_another_model_is_refused(two: list[dict[str, Any]]) -> None:
    for found in two:
        assert "another model" in found["other model"]


def test_a_saved_model_is_whole(directory: Path, two: list[dict[str, Any]]) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(directory / "left")
    expected = two[0]["after resharding"][1]
    held = loaded.state_dict()
    for name, value in expected.items():
        np.testing.assert_array_equal(held[name].numpy(), value)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
