"""The paced policy of the studies: its engine and its trainer agree, it generalises to unseen prompts, and rollouts
take the drawn times."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from workspace import ROOT

from astraflow_core.types import Batch, GenerateRequest, Sampling, WeightSource
from astraflow_testing.conformance.subject import context
from astraflow_testing.table import TableAlgorithm

DIGITS, END, LETTER, ASKED = range(10), 10, 11, 12
VOCABULARY = 13


@pytest.fixture(autouse=True)
def _bench_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(ROOT)
    yield


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": VOCABULARY, "eos_token_id": END}))
    return folder


def engine_of(**keys: Any) -> Any:
    from bench.support.paced import Engine, EngineConfig

    return Engine(EngineConfig.model_validate({"token_s": 1e-9, **keys}), context("engine", Path()))


def trainer_of(model: Path, **keys: Any) -> Any:
    from bench.support.paced import Trainer, TrainerConfig

    trainer = Trainer(TrainerConfig(**keys), context("trainer", Path()))
    trainer.setup(model, 10, frozenset())
    return trainer


async def load(engine: Any, trainer: Any, folder: Path, version: int) -> None:
    file = folder / f"{version}.safetensors"
    save_file({tensor.name: np.asarray(tensor.data) for tensor in trainer.export()}, file)
    await engine.load_weights(WeightSource("solver", version, file, "", 0, 0.0))


def prompt(number: int) -> list[int]:
    return [LETTER, number // 10, number % 10, ASKED]


async def answers(engine: Any, numbers: list[int], temperature: float = 1.0) -> list[Any]:
    return [
        await engine.generate(
            GenerateRequest(f"{place}", np.array(prompt(number), np.int32), Sampling(3, temperature=temperature))
        )
        for place, number in enumerate(numbers)
    ]  # fmt: skip


def reward(number: int, tokens: list[int]) -> float:
    right = [9 - number // 10, 9 - number % 10, END]
    return sum(a == b for a, b in zip(tokens, right, strict=False)) / 3


def batch_of(numbers: list[int], results: list[Any], size: int) -> Batch:
    rows = [
        np.array([*prompt(n), *r.tokens], np.int32) for n, r in zip(numbers, results, strict=True)
    ]
    masks = [np.arange(len(row)) >= 4 for row in rows]
    logprobs = [np.concatenate([np.zeros(4, np.float32), r.logprobs]) for r in results]
    rewards = np.array(
        [reward(n, r.tokens.tolist()) for n, r in zip(numbers, results, strict=True)], np.float32
    )
    groups = len(rows) // size
    means = rewards.reshape(groups, size).mean(1)
    mask = np.concatenate(masks)
    return Batch(
        id="b", policy="solver", version=0, lengths=np.array([len(row) for row in rows], np.int32),
        tokens=np.concatenate(rows), loss_mask=mask, logprobs=np.concatenate(logprobs).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32), rewards=rewards,
        group=np.repeat(np.arange(groups), size), trajectory=np.arange(len(rows)),
        group_size=np.full(len(rows), size, np.int32), group_mean=np.repeat(means, size).astype(np.float32),
        group_std=np.ones(len(rows), np.float32),
    )  # fmt: skip


def test_engine_and_trainer_agree_and_learn_prompts_that_were_never_trained(
    model: Path, tmp_path: Path
) -> None:
    engine, trainer = engine_of(), trainer_of(model, lr=100.0)
    algorithm = TableAlgorithm(None, context("algorithm", Path()))
    seen = [n for n in range(100) if n % 7]

    async def train() -> float:
        await engine.start(model)
        for version in range(25):
            await load(engine, trainer, tmp_path, version)
            numbers = np.repeat(np.random.default_rng(version).choice(seen, 32), 8).tolist()
            batch = batch_of(numbers, await answers(engine, numbers), 8)
            told = trainer.logprobs(batch, "current")[batch.loss_mask]
            np.testing.assert_allclose(told, batch.logprobs[batch.loss_mask], atol=1e-5)
            batch = replace(batch, advantages=algorithm.advantages(batch))
            trainer.step(replace(batch, weights=algorithm.weights(batch)), algorithm, version)
        await load(engine, trainer, tmp_path, 25)
        unseen = [n for n in range(100) if n % 7 == 0]
        results = await answers(engine, unseen, temperature=0.0)
        return float(
            np.mean([reward(n, r.tokens.tolist()) for n, r in zip(unseen, results, strict=True)])
        )

    assert asyncio.run(train()) > 0.9


def test_lengths_have_the_mean_and_the_tail_that_were_asked_for_and_follow_the_load(
    model: Path,
) -> None:
    engine = engine_of(token_s=1.0, median=2.0, sigma=1.0, longest=5.0, load=[[0, 1.0], [10, 3.0]])
    drawn = np.array([engine._seconds(0) for _ in range(20_000)])
    expected = 2 * np.minimum(np.exp(np.random.default_rng(0).standard_normal(200_000)), 5.0).mean()
    assert abs(drawn.mean() / expected - 1) < 0.03
    assert drawn.max() == 10.0
    later = np.mean([engine._seconds(5) for _ in range(20_000)])
    assert abs(later / drawn.mean() - 2) < 0.1


def test_the_ballast_changes_in_one_bit_of_the_stated_share(model: Path) -> None:
    from bench.support.paced import CHANGED

    trainer = trainer_of(model, ballast_mb=0.2)
    before = trainer._ballast.copy()
    batch = batch_of([12, 12], asyncio.run(_started(model)), 2)
    nothing = np.zeros(len(batch.tokens), np.float32)
    batch = replace(batch, advantages=nothing, weights={"policy": nothing})
    trainer.step(batch, TableAlgorithm(None, context("algorithm", Path())), 0)
    changed = before ^ trainer._ballast
    assert set(np.unique(changed)) == {0, 1}
    assert 0.8 * CHANGED < (changed != 0).mean() <= CHANGED


async def _started(model: Path) -> list[Any]:
    engine = engine_of()
    await engine.start(model)
    return await answers(engine, [12, 12])
