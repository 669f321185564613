"""Versions that come by tensors or by a broadcast, against the stand-in for SGLang's protocol, on CPU."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
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


PROMPT = np.array((5, 9, 3), np.int32)


@dataclass(frozen=True)
class Served:
    """A server that shares its weights in one way, and another model of the same form."""

    stand_in: Any
    model: Path
    other: Path
    update: str
    folder: Path

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Any]:
        """An engine that has started on ``model``; it is closed at the end."""
        keys = {"url": self.stand_in.url, "update": self.update, "chunk_mb": 1}
        (build,) = installed("engine", "sglang", keys).variants.values()
        engine = build(context("engine", self.folder))
        async with asyncio.timeout(60):
            await engine.start(self.model)
            try:
                yield engine
            finally:
                await engine.close()

    @property
    def next(self) -> WeightSource:
        """The weights of ``other`` as version 1."""
        return WeightSource("p", 1, self.other / "model.safetensors", "", 0, 0.0)


@pytest.fixture(params=["tensor", "distributed"])
def served(
    serving: Callable[[Path], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Served:
    from astraflow_plugin_sglang import sharing

    monkeypatch.setattr(sharing, "gpu", lambda: torch.device("cpu"))
    model, other = (
        write_tiny_model(tmp_path / name, hidden=256, init_std=0.1, context=512, seed=seed)
        for seed, name in enumerate(("model", "other"))
    )
    return Served(serving(model), model, other, request.param, tmp_path)


def test_a_version_comes_in_chunks_under_requests_in_flight(served: Served) -> None:
    async def main() -> None:
        async with served.engine() as engine:
            sampling = Sampling(400, ignore_eos=True)
            sent = asyncio.ensure_future(engine.generate(GenerateRequest("r", PROMPT, sampling)))
            while (await engine.health())["tokens_generated"] < 5:
                await asyncio.sleep(0.002)
            await engine.pause("keep")
            await engine.load_weights(served.next)
            await engine.resume()
            fresh = await engine.generate(GenerateRequest("s", PROMPT, Sampling(6)))
            await engine.abort(["r"])
            assert set((await sent).versions.tolist()) == {0, 1}
        whole = np.concatenate([PROMPT, fresh.tokens])[:-1]
        logits = qwen3.logits(served.other, [(served.next.path, whole)])[2:]
        expected = qwen3.log_softmax(logits)[np.arange(len(fresh.tokens)), fresh.tokens]
        np.testing.assert_allclose(fresh.logprobs, expected, atol=1e-4)

    asyncio.run(main())
    sent = served.stand_in.bodies(PATHS[served.update])
    numbered = [body["weight_version"] for body in sent if "weight_version" in body]
    assert numbered == ["0", "1"] and len(sent) > 2, "each version came in several chunks"
    for body in sent:
        assert body["abort_all_requests"] is False


def test_a_chunk_that_is_refused_is_undone_in_a_session_of_its_own(served: Served) -> None:
    stand_in = served.stand_in

    async def main() -> None:
        async with served.engine() as engine:
            greedy = GenerateRequest("r", PROMPT, Sampling(6, temperature=0, ignore_eos=True))
            before = await engine.generate(greedy)
            await engine.pause("keep")
            stand_in.refuse_after(PATHS[served.update], 1)
            with pytest.raises(WeightsError, match="version 0 is loaded again"):
                await engine.load_weights(served.next)
            await engine.resume()
            after = await engine.generate(greedy)
            np.testing.assert_allclose(after.logprobs, before.logprobs, atol=1e-6)
            assert set(after.versions.tolist()) == {0}

    asyncio.run(main())
    sessions = [path for path, _ in stand_in.calls if path.endswith("_weight_update")]
    pairs = ["/begin_weight_update", "/end_weight_update"]
    assert sessions[-6:] == pairs * 3, "of the start, of the refused version, of the one before"
    assert not stand_in.scheduler.session and not stand_in.groups
    groups = {body["group_name"] for body in stand_in.bodies("/init_weights_update_group")}
    assert len(groups) == (2 if served.update == "distributed" else 0), (
        "a refused broadcast broke the first"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_tensors_are_shared_on_a_gpu_only(serving: Callable[[Path], Any], tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", hidden=32)
    keys = {"url": serving(model).url, "update": "tensor"}
    (build,) = installed("engine", "sglang", keys).variants.values()
    with pytest.raises(UserError, match="shares memory of a GPU and finds none"):
        asyncio.run(build(context("engine", tmp_path)).start(model))
