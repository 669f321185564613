from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from astraflow_core.types import (
    Batch,
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    RunInfo,
    Sampling,
    WeightSource,
)
from astraflow_testing.table import (
    TableAlgorithm,
    TableEngine,
    TableEngineConfig,
    TableTrainer,
    TableTrainerConfig,
)
from astraflow_tiny_model.folder import write_tiny_model

CONTEXT = ComponentContext(RunInfo("r", 0, 1, 0, ("p",), Path("r")), "engine", "p", 0, Path("r"))
PROMPT = np.array([5, 6], np.int32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(
        tmp_path_factory.mktemp("model"), hidden=8, layers=1, heads=1, kv_heads=1
    )


def make_batch(results: list[GenerateResult], rewards: np.ndarray) -> Batch:
    rows = len(results)
    lengths = np.array([2 + len(result.tokens) for result in results], np.int32)

    def column(prompt: object, name: str, dtype: type) -> np.ndarray:
        parts = [np.concatenate([np.asarray(prompt), getattr(r, name)]) for r in results]
        return np.concatenate(parts).astype(dtype)

    return Batch(
        id="b", policy="p", version=0, lengths=lengths,
        tokens=column(PROMPT, "tokens", np.int32),
        loss_mask=column([-1, -1], "versions", np.int32) >= 0,
        logprobs=column([0, 0], "logprobs", np.float32),
        versions=column([-1, -1], "versions", np.int32),
        rewards=rewards.astype(np.float32),
        group=np.zeros(rows, np.int64), trajectory=np.arange(rows),
        group_size=np.full(rows, rows, np.int32),
        group_mean=np.full(rows, rewards.mean(), np.float32),
        group_std=np.full(rows, rewards.std(), np.float32),
    )  # fmt: skip


def test_it_learns_and_reports_the_log_probs_that_the_trainer_computes(
    model: Path, tmp_path: Path
) -> None:
    from safetensors.numpy import save_file

    async def learn() -> list[float]:
        engine = TableEngine(TableEngineConfig(), CONTEXT)
        trainer, algorithm = (
            TableTrainer(TableTrainerConfig(), CONTEXT),
            TableAlgorithm(None, CONTEXT),
        )
        await engine.start(model)
        trainer.setup(model, 100, frozenset())
        curve = []
        for step in range(60):
            requests = [
                GenerateRequest(str(i), PROMPT, Sampling(3, ignore_eos=True)) for i in range(64)
            ]
            results = await asyncio.gather(*(engine.generate(request) for request in requests))
            rewards = np.array([(r.tokens == [3, 4, 5]).mean() for r in results])
            curve.append(float(rewards.mean()))
            batch = make_batch(list(results), rewards)
            current = trainer.logprobs(batch, "current")
            np.testing.assert_allclose(
                current[batch.loss_mask], batch.logprobs[batch.loss_mask], atol=1e-5
            )
            from dataclasses import replace

            batch = replace(batch, advantages=algorithm.advantages(batch))
            batch = replace(batch, weights=algorithm.weights(batch))
            trainer.step(batch, algorithm, step)
            (exported,) = trainer.export()
            path = tmp_path / f"{step}.safetensors"
            save_file({"logits": exported.data}, path)
            await engine.load_weights(WeightSource("p", step + 1, path, "", 0, 0.0))
        await engine.close()
        return curve

    curve = asyncio.run(learn())
    assert curve[0] < 0.15 < 0.9 < np.mean(curve[-5:])


def test_keep_freezes_requests_and_tokens_carry_the_version_that_sampled_them(
    model: Path, tmp_path: Path
) -> None:
    from safetensors.numpy import save_file

    async def swap() -> np.ndarray:
        engine = TableEngine(TableEngineConfig(token_s=0.005), CONTEXT)
        await engine.start(model)
        request = GenerateRequest("a", PROMPT, Sampling(20, ignore_eos=True))
        running = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0.05)
        await engine.pause("keep")
        path = tmp_path / "w.safetensors"
        save_file({"logits": np.zeros((16, 27), np.float32)}, path)
        await engine.load_weights(WeightSource("p", 1, path, "", 0, 0.0))
        assert not running.done()
        await engine.resume()
        result = await asyncio.wait_for(running, 5)
        await engine.close()
        return result.versions

    versions = asyncio.run(swap())
    assert versions[0] == 0 and versions[-1] == 1 and (np.diff(versions) >= 0).all()
