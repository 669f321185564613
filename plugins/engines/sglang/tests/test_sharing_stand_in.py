"""Versions that come by tensors or by a broadcast, against the stand-in for SGLang's protocol, on CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import UserError, WeightsError
from astraflow_core.types import GenerateRequest, Sampling, WeightSource
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance.subject import context, installed
from astraflow_tiny_model.folder import write_tiny_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)
PATHS = {
    "tensor": "/update_weights_from_tensor",
    "distributed": "/update_weights_from_distributed",
}


@pytest.mark.parametrize("update", ["tensor", "distributed"])
def test_a_version_comes_in_chunks_under_requests_in_flight(
    serving: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: str
) -> None:
    from astraflow_plugin_sglang import sharing

    monkeypatch.setattr(sharing, "gpu", lambda: torch.device("cpu"))
    model = write_tiny_model(tmp_path / "model", hidden=256, init_std=0.1, context=512)
    other = write_tiny_model(tmp_path / "other", hidden=256, init_std=0.1, context=512, seed=1)
    stand_in = serving(model)
    prompt = np.array((5, 9, 3), np.int32)

    async def main() -> None:
        keys = {"url": stand_in.url, "update": update, "chunk_mb": 1}
        (build,) = installed("engine", "sglang", keys).variants.values()
        engine = build(context("engine", tmp_path))
        async with asyncio.timeout(60):
            await engine.start(model)
            try:
                sampling = Sampling(400, ignore_eos=True)
                sent = asyncio.ensure_future(
                    engine.generate(GenerateRequest("r", prompt, sampling))
                )
                while (await engine.health())["tokens_generated"] < 5:
                    await asyncio.sleep(0.002)
                await engine.pause("keep")
                file = other / "model.safetensors"
                await engine.load_weights(WeightSource("p", 1, file, "", 0, 0.0))
                await engine.resume()
                fresh = await engine.generate(GenerateRequest("s", prompt, Sampling(6)))
                await engine.abort(["r"])
                assert set((await sent).versions.tolist()) == {0, 1}
            finally:
                await engine.close()
        whole = np.concatenate([prompt, fresh.tokens])[:-1]
        logits = qwen3.logits(other, [(other / "model.safetensors", whole)])[2:]
        expected = qwen3.log_softmax(logits)[np.arange(len(fresh.tokens)), fresh.tokens]
        np.testing.assert_allclose(fresh.logprobs, expected, atol=1e-4)

    asyncio.run(main())
    sent = stand_in.bodies(PATHS[update])
    numbered = [body["weight_version"] for body in sent if "weight_version" in body]
    assert numbered == ["0", "1"] and len(sent) > 2, "each version came in several chunks"
    for body in sent:
        assert body["abort_all_requests"] is False


@pytest.mark.parametrize("update", ["tensor", "distributed"])
def test_a_chunk_that_is_refused_is_undone_in_a_session_of_its_own(
    serving: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: str
) -> None:
    from astraflow_plugin_sglang import sharing

    monkeypatch.setattr(sharing, "gpu", lambda: torch.device("cpu"))
    model = write_tiny_model(tmp_path / "model", hidden=256, init_std=0.1, context=64)
    other = write_tiny_model(tmp_path / "other", hidden=256, init_std=0.1, context=64, seed=1)
    stand_in = serving(model)
    prompt = np.array((5, 9, 3), np.int32)

    async def main() -> None:
        keys = {"url": stand_in.url, "update": update, "chunk_mb": 1}
        (build,) = installed("engine", "sglang", keys).variants.values()
        engine = build(context("engine", tmp_path))
        async with asyncio.timeout(60):
            await engine.start(model)
            try:
                greedy = GenerateRequest("r", prompt, Sampling(6, temperature=0, ignore_eos=True))
                before = await engine.generate(greedy)
                await engine.pause("keep")
                stand_in.refuse_after(PATHS[update], 1)
                file = other / "model.safetensors"
                with pytest.raises(WeightsError, match="version 0 is loaded again"):
                    await engine.load_weights(WeightSource("p", 1, file, "", 0, 0.0))
                await engine.resume()
                after = await engine.generate(greedy)
                np.testing.assert_allclose(after.logprobs, before.logprobs, atol=1e-6)
                assert set(after.versions.tolist()) == {0}
            finally:
                await engine.close()

    asyncio.run(main())
    sessions = [path for path, _ in stand_in.calls if path.endswith("_weight_update")]
    pairs = ["/begin_weight_update", "/end_weight_update"]
    assert sessions[-6:] == pairs * 3, "of the start, of the refused version, of the one before"
    assert not stand_in.scheduler.session and not stand_in.groups
    groups = {body["group_name"] for body in stand_in.bodies("/init_weights_update_group")}
    assert len(groups) == (2 if update == "distributed" else 0), (
        "a refused broadcast broke the first"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_tensors_are_shared_on_a_gpu_only(serving: Callable[[Path], Any], tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", hidden=32)
    keys = {"url": serving(model).url, "update": "tensor"}
    (build,) = installed("engine", "sglang", keys).variants.values()
    with pytest.raises(UserError, match="shares memory of a GPU and finds none"):
        asyncio.run(build(context("engine", tmp_path)).start(model))
