"""What is computed by one rank of trainer ``torch`` and by several of ``fsdp``, to be compared."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.protocols.trainer import (
    AccumulatesGradients,
    AdamWStep,
    ExportsShards,
    GivesLogitGradients,
    Trainer,
)
from astraflow_core.types import Batch, ComponentContext, Ranks, RunInfo
from astraflow_core.types.generation import not_recorded
from astraflow_testing.conformance.subject import installed

FSDP_RANKS = pytest.mark.turns(
    "plugins/trainers/fsdp/src/**/*.py",
    "plugins/trainers/fsdp/tests/conftest.py",
    "plugins/trainers/fsdp/tests/fsdp_*.py",
    "plugins/trainers/torch/src/**/*.py",
    "libs/torch_training/src/**/*.py",
    "libs/torch_weights/src/**/*.py",
    "libs/training/src/**/*.py",
    unit="ranks of fsdp",
)
"""Tests of what two and four ranks made, once."""
VOCABULARY = 27
EXPERTS, TOP_K = 6, 2
LONG = 8192
"""Tokens of the models' context."""
LR = 1e-3
KEYS: dict[str, Any] = {
    "device": "cpu",
    "publish_dtype": "float32",
    "lr": LR,
    "schedule": "linear",
    "warmup_steps": 2,
    "weight_decay": 0.1,
    "micro_batch_tokens": 48,
}
GRPO = {"clip_low": 0.2, "clip_high": 0.28}
PENALISED = {**GRPO, "kl_coef": 0.05, "entropy_coef": 0.01}


def write_models(directory: Path) -> None:
    """``qwen3`` (q/k norm, tied head), ``llama`` (a head of its own) and ``experts``, all with norms that are not 1, and
    ``broken``, which lacks weights."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LONG,
        "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    torch.manual_seed(3)
    models = {
        "qwen3": Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=8, tie_word_embeddings=True)),
        "llama": LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False)),
        "experts": Qwen3MoeForCausalLM(
            Qwen3MoeConfig(
                **sizes, head_dim=8, moe_intermediate_size=16, num_experts=EXPERTS,
                num_experts_per_tok=TOP_K, norm_topk_prob=True, tie_word_embeddings=False,
            )
        ),
    }  # fmt: skip
    for name, model in models.items():
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
        model.save_pretrained(directory / name)
    broken = directory / "broken"
    models["qwen3"].save_pretrained(broken)
    config = json.loads((broken / "config.json").read_text())
    config["num_hidden_layers"] = 3
    config.pop("layer_types", None)
    (broken / "config.json").write_text(json.dumps(config))


def make_batch(seed: int, rows: int = 13, longest: int = 0) -> Batch:
    """Groups of rows of 3 to 24 tokens, of which the answers are trained, and one row of which nothing is. With ``longest``
    the first row has so many."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 25, rows).astype(np.int32)
    lengths[0] = longest or lengths[0]
    starts = np.cumsum(lengths) - lengths
    place = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    mask = place >= np.repeat(1 + lengths // 3, lengths)
    if rows > 1:
        mask[starts[1] : starts[1] + lengths[1]] = False
    rewards = rng.random(rows).astype(np.float32)
    group = np.arange(rows) // 4
    mean = np.array([rewards[group == g].mean() for g in group])
    std = np.array([rewards[group == g].std() for g in group])
    return Batch(
        id=f"b{seed}",
        policy="p",
        version=1,
        lengths=lengths,
        tokens=rng.integers(0, VOCABULARY, len(mask)).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -3 - rng.random(len(mask)), 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=rewards,
        group=group.astype(np.int64),
        trajectory=np.arange(rows, dtype=np.int64),
        group_size=np.array([(group == g).sum() for g in group], np.int32),
        group_mean=mean.astype(np.float32),
        group_std=std.astype(np.float32),
        temperature=0.8,
    )


@dataclass
class Rank:
    """Builds components of a process that is one of several ranks, or the only one."""

    directory: Path
    ranks: Ranks = field(default_factory=Ranks)

    def _build(self, kind: str, use: str, keys: dict[str, Any]) -> Any:
        run = RunInfo("test", 0, 10, 0, ("p",), self.directory)
        context = ComponentContext(
            run, "trainer", "p", 7, self.directory / "state", ranks=self.ranks
        )
        (factory,) = installed(kind, use, keys).variants.values()
        return factory(context)

    def algorithm(self, use: str, keys: dict[str, Any]) -> Algorithm:
        built: Algorithm = self._build("algorithm", use, keys)
        return built

    def trainer(
        self, use: str, model: str, needs: frozenset[str] = frozenset(), **keys: Any
    ) -> Trainer:
        """Set up for ten steps."""
        trainer: Trainer = self._build("trainer", use, {**KEYS, **keys})
        trainer.setup(self.directory / "models" / model, 10, needs)
        return trainer


def with_experts(batch: Batch) -> Batch:
    """The batch with recorded experts, other ones than the routers choose; the second row has none."""
    rng = np.random.default_rng(len(batch.tokens))
    order = np.argsort(rng.random((len(batch.tokens), 2, EXPERTS)), -1)
    routed = order[..., :TOP_K].astype(np.uint8)
    routed[batch.offsets[1] : batch.offsets[2]] = not_recorded(routed.dtype)
    return replace(batch, routed_experts=routed)


def train(
    trainer: Trainer,
    algorithm: Algorithm,
    seeds: Iterable[int],
    rows: int = 13,
    experts: bool = False,
) -> list[dict[str, float]]:
    """A step on each batch, prepared as the loop of a trainer does."""
    metrics = []
    for seed in seeds:
        batch = make_batch(seed, rows)
        batch = prepared(trainer, algorithm, with_experts(batch) if experts else batch)
        metrics.append(trainer.step(batch, algorithm, seed))
    return metrics


def accumulate_and_apply(rank: Rank, use: str, **keys: Any) -> dict[str, Any]:
    """Two steps, each with the gradients of two batches and a look at a third one."""
    trainer, grpo = rank.trainer(use, "qwen3", **keys), rank.algorithm("grpo", GRPO)
    driven = cast(AccumulatesGradients, trainer)
    metrics = []
    for seed in (20, 30):
        for backward, batch in zip((True, False, True), range(seed, seed + 3), strict=True):
            ready = prepared(trainer, grpo, make_batch(batch))
            metrics.append(driven.accumulate(ready, grpo, 0, backward))
        metrics.append(driven.apply(AdamWStep(lr=LR, max_grad_norm=0.5)))
    found = {"metrics": metrics, "weights": weights(trainer)}
    trainer.close()
    return found


def prepared(trainer: Trainer, algorithm: Algorithm, batch: Batch) -> Batch:
    given: dict[str, Any] = {}
    # The behaviour is close to the policy's, as that of a rollout.
    current = trainer.logprobs(batch, "current")
    noise = np.random.default_rng(1).normal(0, 0.2, len(current))
    given["logprobs"] = np.where(batch.loss_mask, np.minimum(current + noise, 0), 0)
    if "reference" in algorithm.needs:
        given["reference"] = trainer.logprobs(batch, "reference")
    if "proximal" in algorithm.needs:
        given["proximal"] = current
    if "values" in algorithm.needs:
        given["values"] = trainer.values(batch)
    batch = replace(batch, **{name: v.astype(np.float32) for name, v in given.items()})
    batch = replace(batch, advantages=algorithm.advantages(batch))
    return replace(batch, weights=algorithm.weights(batch))


def weights(trainer: Trainer) -> dict[str, np.ndarray]:
    return {
        t.name: np.frombuffer(bytes(t.data), np.float32).reshape(t.shape).copy()
        for t in trainer.export()
    }


def shards(trainer: Trainer) -> list[tuple[str, tuple[int, ...], int, bytes]]:
    """What this rank would publish: name, shape of the whole, first element, bits."""
    slices = cast(ExportsShards, trainer).export_shards()
    return [(part.name, part.shape, part.start, bytes(part.data)) for part in slices]


def digest(trainer: Trainer) -> int:
    """Of the bits of all weights."""
    return zlib.crc32(b"".join(value.tobytes() for value in weights(trainer).values()))


EXPERTS_REPLAYED = "experts"
"""The scenario whose batches have recorded experts."""
SCENARIOS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    # model, algorithm, its keys, the trainer's keys
    "qwen3": ("qwen3", "grpo", GRPO, {}),
    "llama": ("llama", "grpo", PENALISED, {}),
    "critic": ("llama", "ppo", {}, {"weight_decay": 0.0}),
    "critic-model": ("qwen3", "ppo", {}, {"critic": "model"}),
    "lora": ("qwen3", "grpo", PENALISED, {"lora_rank": 3}),
    "sequence": ("llama", "gspo", {}, {}),
    EXPERTS_REPLAYED: ("experts", "grpo", PENALISED, {}),
}
CONTEXT = {
    "qwen3": {"layout": "packed", "gradient_checkpointing": True},
    "llama": {},
    "sequence": {"reduce": "each"},
    "critic": {"cpu_offload": True},
    "critic-model": {},
    "lora": {},
    EXPERTS_REPLAYED: {},
}
"""Scenarios of two ranks that share rows, and the keys that they have besides."""
DRIVEN: list[dict[str, Any]] = [
    {},
    {"reduce": "each"},
    {"tensor_parallel": 2},
    {"context_parallel": 2},
]
"""Keys of two ranks whose gradients a caller adds up."""
STEPS = 3
"""Of them two warm up."""
MESHES: list[dict[str, Any]] = [
    {"replicas": 2},
    {"tensor_parallel": 2},
    {"replicas": 2, "tensor_parallel": 2},
    {"context_parallel": 2},
    {"context_parallel": 2, "replicas": 2, "layout": "packed"},
    {"context_parallel": 2, "tensor_parallel": 2},
    {"context_parallel": 4, "micro_batch_tokens": 4},
]
"""Of four ranks. The last cuts rows that are shorter than the ranks are many."""


def run_scenario(rank: Rank, use: str, name: str, **more: Any) -> dict[str, Any]:
    """A few steps; what came of them."""
    model, algorithm_name, algorithm_keys, keys = SCENARIOS[name]
    algorithm = rank.algorithm(algorithm_name, algorithm_keys)
    trainer = rank.trainer(use, model, algorithm.needs, **{**keys, **more})
    experts, last = name == EXPERTS_REPLAYED, make_batch(99)
    metrics = train(trainer, algorithm, range(STEPS), experts=experts)
    found = {
        "metrics": metrics,
        "weights": weights(trainer),
        "step_logprobs": cast(Any, trainer).step_logprobs(),
        "step_entropies": cast(Any, trainer).step_entropies(),
        "logprobs": trainer.logprobs(with_experts(last) if experts else last, "current"),
        "logit_gradients": cast(GivesLogitGradients, trainer).logit_gradients(last),
    }
    if experts:
        found["free"] = trainer.logprobs(last, "current")
    if use == "fsdp" and getattr(trainer, "weights_kind", "full") == "full":
        found["shards"] = shards(trainer)
    trainer.close()
    return found


def long_row(rank: Rank, use: str, **keys: Any) -> dict[str, Any]:
    """A step on one row that fills the context, and the log-probs before it."""
    algorithm = rank.algorithm("grpo", GRPO)
    trainer = rank.trainer(use, "qwen3", **keys)
    batch = prepared(trainer, algorithm, make_batch(17, rows=1, longest=LONG))
    found = {
        "logprobs": trainer.logprobs(batch, "current"),
        "metrics": [trainer.step(replace(batch, advantages=alternating(batch)), algorithm, 0)],
        "weights": weights(trainer),
    }
    trainer.close()
    return found


def alternating(batch: Batch) -> npt.NDArray[np.float32]:
    """Advantages that a group of one row would not have."""
    return np.where(np.arange(len(batch.tokens)) % 3, 1.0, -1.0).astype(np.float32)


def same_steps(got: dict[str, Any], expected: dict[str, Any]) -> None:
    """What the last step has computed of each token, and gradients by the logits."""
    for name in ("step_logprobs", "step_entropies", "logit_gradients"):
        if expected[name] is None:
            assert got[name] is None
        else:
            assert np.any(expected[name])
            np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=1e-5, err_msg=name)


def same_weights(got: dict[str, np.ndarray], expected: dict[str, np.ndarray], steps: int) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=0, atol=0.05 * LR * steps, err_msg=name)


def same_metrics(got: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        # How it was computed may differ.
        own = {"padding_fraction", "peak_memory_gb"}
        assert mine.keys() == theirs.keys()
        for name in mine.keys() - own:
            if name.endswith("grad_norm"):
                assert mine[name] == pytest.approx(theirs[name], rel=1e-4), name
            elif not name.endswith("_s"):
                assert mine[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-5), name
