"""Whether a model with experts learns as well without router replay: ``python -m bench.studies.replay SETTING``.

Two runs of each seed in one process, alike but that one imposes the experts that the engine chose. The engine `torch` computes in
bfloat16, the trainer in float32, so that their routers choose others: the routing gap is made large on purpose. In ``mild`` and
``harsh`` the engine gets new weights only after several updates. In the others it gets each version, and the
logits of a router have a large part in common, which changes no choice by itself, but leaves bfloat16 few bits for what tells experts
apart: what the z-loss of ST-MoE (Zoph et al. 2022, arXiv:2202.08906) is to prevent.

The task is to count upwards: the reward of a sequence is the share of its tokens that are the
one after their predecessor. Ratios are taken to the engine's log-probs. Of each update are kept the mean reward of what was sampled,
the share of tokens whose ratio is beyond 0.8 to 1.2, the mean gap of log-probs, the largest ratio, and the norm of the gradient.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file, save_file

from astraflow_core.catalog import Catalog
from astraflow_core.types import Batch, GenerateRequest, Sampling, WeightSource
from astraflow_core.types.columns import zeros
from astraflow_core.types.generation import not_recorded
from astraflow_runtime.trainer.updates.update import update
from astraflow_testing.conformance.subject import context
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_wire.column_table import batch_columns

FIRST, PROMPT = 2, 2
FILE = Path(__file__).parents[1] / "results" / "studies" / "router_replay.json"


@dataclass(frozen=True, slots=True)
class ReplaySetting:
    """Learning rate ``lr``, ``updates`` of a run, of which the engine gets each ``every``-th, and a model's sizes. A row of a
    router is a row of its own plus one with deviation ``common`` that all rows share. An update has ``groups`` of ``group``
    sequences of ``tokens`` tokens; counted are ``words`` of them."""

    lr: float
    updates: int
    every: int
    layers: int
    experts: int
    top_k: int
    seeds: int = 3
    hidden: int = 48
    init_std: float = 0.15
    common: float = 0.0
    words: int = 25
    tokens: int = 12
    groups: int = 8
    group: int = 8
    max_grad_norm: float = 1e6
    algorithm: str = "grpo"
    keys: dict[str, Any] = field(default_factory=dict)


COMMON = ReplaySetting(
    4e-3, 50, 1, 2, 8, 1, 5, init_std=0.25, common=32.0, words=10, tokens=16, groups=4, group=16, max_grad_norm=1.0
)  # fmt: skip
ROW_RATIO = {
    "ratio_level": "sequence",
    "aggregation": "seq_mean_token_mean_all_rows",
    "dual_clip": "none",
    "log_ratio_clamp": "none",
    "entropy_coef": 0.02,
}
"""Of ``rloo``: the ratio of a row and its clip are TRL's."""
SETTINGS = {
    "mild": ReplaySetting(4e-3, 48, 4, 4, 16, 2),
    "harsh": ReplaySetting(1.2e-2, 96, 8, 6, 32, 4),
    "row_ratio": replace(COMMON, algorithm="rloo", keys=ROW_RATIO),
    "token_ratio": replace(COMMON, seeds=3, keys={"clip_high": 0.28, "entropy_coef": 0.02}),
}


def main(name: str) -> None:
    """Make the runs of a setting that are not yet recorded, and record them beside those of others."""
    torch.set_num_threads(1)
    setting = SETTINGS[name]
    for seed in range(setting.seeds):
        for replayed in (False, True):
            if any((r["seed"], r["replay"]) == (seed, replayed) for r in recorded(name)[1]["runs"]):
                continue
            began = time.process_time()
            run = asyncio.run(learned(setting, seed, replayed))
            found, of_setting = recorded(name)
            of_setting["cpu_s"] += round(time.process_time() - began)
            of_setting["runs"].append({"seed": seed, "replay": replayed, **run})
            write(found)
            late = run["rewards"][-8:]
            print(seed, replayed, round(float(np.mean(late)), 3), max(run["ratios"]), flush=True)


def write(found: dict[str, Any]) -> None:
    """Record it; the numbers of a curve are on one line."""
    text = re.sub(r"(?<=\d,|[ \n]\[)\s+(?=-?\d)|(?<=\d)\s+(?=\])", " ", json.dumps(found, indent=1))
    FILE.write_text(text + "\n", encoding="utf-8")


def recorded(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """All that the file has, and in it what is of a setting."""
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    empty = {"setting": asdict(SETTINGS[name]), "cpu_s": 0, "runs": []}
    return found, found.setdefault(name, empty)


async def learned(setting: ReplaySetting, seed: int, replayed: bool) -> dict[str, list[float]]:
    """One run."""
    catalog, generator = Catalog.discover(), np.random.default_rng(seed)
    names = ("rewards", "clipped", "gaps", "ratios", "gradients")
    kept: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        folder = write_tiny_model(
            place / "model",
            hidden=setting.hidden,
            ffn=32,
            init_std=setting.init_std,
            seed=seed,
            layers=setting.layers,
            experts=setting.experts,
            top_k=setting.top_k,
        )
        share_a_row(folder / "model.safetensors", setting.common, seed)

        def built(kind: str, name: str, **keys: Any) -> Any:
            selected, config = catalog.validate_options(kind, name, keys, name)
            return selected.build(config, context(kind, place, seed=seed))

        engine = built("engine", "torch", device="cpu", dtype="bfloat16")
        trainer = built(
            "trainer",
            "torch",
            device="cpu",
            lr=setting.lr,
            publish_dtype="float32",
            schedule="constant",
            warmup_steps=0,
            max_grad_norm=setting.max_grad_norm,
        )
        algorithm = built("algorithm", setting.algorithm, **setting.keys)
        trainer.setup(folder, setting.updates, algorithm.needs)
        await engine.start(folder)
        for number in range(setting.updates):
            batch = await sampled(setting, engine, generator, number)
            if not replayed:
                batch = replace(batch, routed_experts=None)
            gap = (trainer.logprobs(batch, "current") - batch.logprobs)[batch.loss_mask]
            ratio = np.exp(gap)
            made = update(batch, trainer, algorithm, parts=1, seed=seed, step=number)
            kept["rewards"].append(round(float(batch.rewards.mean()), 4))
            kept["clipped"].append(round(float((np.abs(ratio - 1) > 0.2).mean()), 4))
            kept["gaps"].append(round(float(np.abs(gap).mean()), 4))
            kept["ratios"].append(round(float(ratio.max()), 2))
            kept["gradients"].append(round(made["grad_norm"], 3))
            if (number + 1) % setting.every == 0:
                await published(engine, trainer, place / f"{number}.safetensors", number + 1)
        await engine.close()
        trainer.close()
    return kept


def share_a_row(file: Path, common: float, seed: int) -> None:
    """Add the same row to all rows of each router."""
    tensors, generator = load_file(file), np.random.default_rng((seed, 1))
    for name in sorted(name for name in tensors if name.endswith(".mlp.gate.weight")):
        router = tensors[name]
        tensors[name] = router + generator.normal(0, common, (router.shape[1],)).astype(np.float32)
    save_file(tensors, file)


async def published(engine: Any, trainer: Any, file: Path, version: int) -> None:
    """The engine gets the trainer's weights."""
    save_file(
        {
            tensor.name: np.frombuffer(bytes(tensor.data), np.float32).reshape(tensor.shape)
            for tensor in trainer.export()
        },
        file,
    )
    await engine.pause("wait")
    await engine.load_weights(WeightSource("p", version, file, "", 0, 0.0))
    await engine.resume()


async def sampled(
    setting: ReplaySetting, engine: Any, generator: np.random.Generator, number: int
) -> Batch:
    """The groups of one update."""
    groups, group = setting.groups, setting.group
    prompts = generator.integers(FIRST, FIRST + setting.words, (groups, PROMPT)).astype(np.int32)
    sampling = Sampling(setting.tokens, ignore_eos=True)
    asked = [
        GenerateRequest(f"{number}.{row}", prompts[row // group], sampling, routing=True)
        for row in range(groups * group)
    ]
    results = await asyncio.gather(*map(engine.generate, asked))
    rows, length = len(asked), PROMPT + setting.tokens
    columns: dict[str, Any] = zeros(batch_columns(False, False), rows, rows * length)
    tokens = np.concatenate(
        [[*one.prompt, *made.tokens] for one, made in zip(asked, results, strict=True)]
    )
    nothing = np.zeros(PROMPT)
    rewards = np.array(
        [
            counted(one.prompt, made.tokens, setting.words)
            for one, made in zip(asked, results, strict=True)
        ]
    )
    grouped = rewards.reshape(groups, group)
    routed = []
    for made in results:
        last = np.full_like(made.routed_experts[:1], not_recorded(made.routed_experts.dtype))
        routed.append(np.concatenate([made.routed_experts, last]))
    columns |= {
        "lengths": np.full(rows, length, np.int32),
        "tokens": tokens.astype(np.int32),
        "loss_mask": np.tile(np.arange(length) >= PROMPT, rows),
        "logprobs": np.concatenate([[*nothing, *made.logprobs] for made in results]).astype(
            np.float32
        ),
        "versions": np.concatenate([[*(nothing - 1), *made.versions] for made in results]).astype(
            np.int32
        ),
        "rewards": rewards.astype(np.float32),
        "group": np.repeat(np.arange(groups), group),
        "trajectory": np.arange(rows),
        "group_size": np.full(rows, group, np.int32),
        "group_mean": np.repeat(grouped.mean(1), group).astype(np.float32),
        "group_std": np.repeat(grouped.std(1, ddof=1), group).astype(np.float32),
        "routed_experts": np.concatenate(routed),
    }
    return Batch(id=str(number), policy="p", version=number + 1, **columns)


def counted(prompt: npt.NDArray[np.int32], tokens: npt.NDArray[np.int32], words: int) -> float:
    """The share of tokens that are the one after their predecessor, in a circle of ``words``."""
    before = np.concatenate([prompt[-1:], tokens[:-1]])
    return float((tokens == FIRST + (before - FIRST + 1) % words).mean())


if __name__ == "__main__":
    main(sys.argv[1])
