"""Tiny models and batches, and GRPO steps on them, the same for every trainer and number of ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.types import Batch, ComponentContext, Ranks, RunInfo
from astraflow_core.types.generation import not_recorded

NO_CUDA = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the stand-in for CUDA is refused where there is a device"
)
EXPERTS, TOP_K, LAYERS = 4, 2, 2
VOCABULARY = 29
"""Odd, so that tensor parallel ranks hold padding."""
STEPS = 4
SEED = 7
LONELY = 3
"""Seed of a batch of a single row: other replicas than one have nothing to do."""
LR = 1e-4
KEYS: dict[str, Any] = {
    "device": "cpu",
    "publish_dtype": "float32",
    "lr": LR,
    "weight_decay": 0.1,
    "schedule": "linear",
    "warmup_steps": 2,
    "max_grad_norm": 0.05,
    "micro_batch_tokens": 90,
}
ALONE = Ranks()
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"kl_coef": 0.01, "entropy_coef": 0.01, "proximal": "recompute"},
    "ppo": {"kl_coef": 0.01, "entropy_coef": 0.01, "proximal": "recompute"},
}


def write_model(folder: Path, kind: str, shard_size: str = "1GB") -> Path:
    """Two layers; norms away from 1 and biases from 0, so that one in the wrong place shows. ``qwen3`` is
    tied, the others are not; ``llama`` scales its rotary positions; ``qwen3_moe`` routes a token to two of four
    experts."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
        "tie_word_embeddings": kind == "qwen3",
    }
    torch.manual_seed(3)
    model: Any
    if kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**sizes))
    elif kind == "qwen3_moe":
        experts = {
            "num_experts": EXPERTS,
            "num_experts_per_tok": TOP_K,
            "moe_intermediate_size": 24,
        }
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts, norm_topk_prob=True))
    elif kind == "qwen2":
        del sizes["head_dim"]
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    else:
        rope = {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        model = LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


def make_batch(seed: int, groups: int = 3, each: int = 4) -> Batch:
    """Ragged rows in groups, holes in the mask, one row of one token and one that is not trained."""
    rng = np.random.default_rng(seed)
    rows = groups * each
    lengths = rng.integers(3, 24, rows).astype(np.int32)
    lengths[rows // 2] = 1
    total = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    mask = rng.random(total) < 0.7
    mask[starts] = False
    mask[starts[0] : starts[0] + lengths[0]] = False
    rewards = rng.random(rows).astype(np.float32)
    grouped = rewards.reshape(groups, each)
    batch = Batch(
        id=f"batch-{seed}",
        policy="solver",
        version=1,
        lengths=lengths,
        tokens=rng.integers(0, VOCABULARY, total).astype(np.int32),
        loss_mask=mask,
        logprobs=np.zeros(total, dtype=np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=rewards,
        group=np.repeat(np.arange(groups), each),
        trajectory=np.arange(rows, dtype=np.int64),
        group_size=np.full(rows, each, dtype=np.int32),
        group_mean=np.repeat(grouped.mean(1), each).astype(np.float32),
        group_std=np.repeat(grouped.std(1, ddof=1), each).astype(np.float32),
        temperature=0.9,
    )
    return batch.take(np.array([1])) if seed == LONELY else batch


def with_experts(batch: Batch) -> Batch:
    """The batch with recorded experts, other ones than the routers choose; the second row, if there is one, has none."""
    rng = np.random.default_rng(len(batch.tokens))
    order = np.argsort(rng.random((len(batch.tokens), LAYERS, EXPERTS)), -1)
    routed = order[..., :TOP_K].astype(np.uint8)
    if len(batch) > 1:
        routed[batch.offsets[1] : batch.offsets[2]] = not_recorded(routed.dtype)
    return replace(batch, routed_experts=routed)


def as_of_two_replicas(checkpoint: Path, lost: int = 0) -> None:
    """Cut what one rank saved into what two replicas would have, somewhere within each parameter; the second
    without ``lost`` of its first elements."""
    whole = checkpoint / "rank00000.safetensors"
    with safe_open(whole, "pt") as file:
        starts = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    first, second, later = {}, {}, {}
    for name, tensor in tensors.items():
        parameter = name.rpartition("/")[0]
        if parameter not in starts:
            continue
        cut = tensor.numel() // 3
        first[name], second[name] = tensor[:cut].clone(), tensor[cut + lost :].clone()
        later[parameter] = str(cut + lost)
    generators = {name: tensors[name] for name in tensors.keys() - first.keys()}
    save_file(first | generators, whole, metadata=starts)
    save_file(second, checkpoint / "rank00001.safetensors", metadata=later)
    facts = json.loads((checkpoint / "trainer.json").read_text())
    facts["layout"]["data"] = 2
    (checkpoint / "trainer.json").write_text(json.dumps(facts))


@cache
def _catalog() -> Catalog:
    return Catalog.discover()


def component(kind: Kind, use: str, keys: dict[str, Any], folder: Path, ranks: Ranks) -> Any:
    """Chosen, validated and built as a run would."""
    run = RunInfo("parity", 0, STEPS, 0, ("solver",), folder)
    context = ComponentContext(run, "trainer", "solver", SEED, folder / "state", ranks=ranks)
    selected, config = _catalog().validate_options(kind, use, keys, str(kind))
    return selected.build(config, context)


class Course:
    """A trainer of ``use`` on ``model``, and steps with it."""

    def __init__(
        self,
        use: str,
        keys: dict[str, Any],
        model: Path,
        folder: Path,
        ranks: Ranks = ALONE,
        algorithm: str = "grpo",
    ) -> None:
        self.folder = folder
        self.trainer = component(Kind.TRAINER, use, {**KEYS, **keys}, folder, ranks)
        self.algorithm = component(Kind.ALGORITHM, algorithm, ALGORITHMS[algorithm], folder, ranks)
        self.trainer.setup(model, STEPS, self.algorithm.needs)

    def sampled(self, seed: int, routed: bool = False) -> Batch:
        """A batch as if the current model had sampled it a while ago, with recorded experts if it is ``routed``."""
        batch = with_experts(make_batch(seed)) if routed else make_batch(seed)
        noise = np.random.default_rng(seed).normal(0, 0.1, len(batch.tokens))
        logprobs = self.trainer.logprobs(batch, "current") + noise.astype(np.float32)
        return replace(batch, logprobs=np.where(batch.loss_mask, logprobs, 0).astype(np.float32))

    def prepared(self, batch: Batch) -> Batch:
        """With what the loop of a trainer fills in."""
        batch = replace(
            batch,
            reference=self.trainer.logprobs(batch, "reference"),
            proximal=self.trainer.logprobs(batch, "current"),
            values=self.values(batch),
        )
        batch = replace(batch, advantages=self.algorithm.advantages(batch))
        return replace(batch, weights=self.algorithm.weights(batch))

    def values(self, batch: Batch) -> npt.NDArray[np.float32] | None:
        """Of the states before the tokens, if the algorithm has a critic."""
        if "values" not in self.algorithm.needs:
            return None
        found: npt.NDArray[np.float32] = self.trainer.values(batch)
        return found

    def step(self, batch: Batch, number: int) -> dict[str, float]:
        """One update."""
        found: dict[str, float] = self.trainer.step(self.prepared(batch), self.algorithm, number)
        return found

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """The export: whole on rank 0, empty elsewhere."""
        return {
            tensor.name: np.frombuffer(bytes(tensor.data), "<f4").reshape(tensor.shape).copy()
            for tensor in self.trainer.export()
        }


def of_step(course: Course, number: int) -> dict[str, Any]:
    """Log-probs and entropies that the last step has computed."""
    trainer: Any = course.trainer
    return {
        f"logprobs/step/{number}": trainer.step_logprobs(),
        f"logprobs/entropies/{number}": trainer.step_entropies(),
    }
