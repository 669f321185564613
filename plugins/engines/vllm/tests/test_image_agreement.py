"""A model that reads images, in a real vLLM server (CPU build): what the engine suite demands of images, and log-probs that
are those of engine ``torch``, also after its vision tower was replaced. The server is one more than that of text models,
since vLLM's model is of one architecture for good."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from astraflow_core.protocols.engine import Engine
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.server import VllmServer
from astraflow_testing.conformance._models.images.engine_image_tests import EngineImageTests
from astraflow_testing.conformance.engine import EngineConformance
from astraflow_testing.conformance.subject import Subject, context, installed
from astraflow_testing.images.pictures import picture, prompt, write_picture_model
from astraflow_wire.images.model import ImageModel

pytestmark = [
    pytest.mark.backend,
    pytest.mark.timeout(2000),
    pytest.mark.turns(
        "plugins/engines/vllm/src/**/*.py",
        "plugins/engines/vllm/tests/conftest.py",
        "libs/serving/src/**/*.py",
        "plugins/engines/torch/src/**/*.py",
        "testing/src/astraflow_testing/conformance/_models/images/*.py",
        unit="vllm images",
    ),
]
GAP = 1e-4
"""Largest that was measured in float32 on CPU: 3e-6."""


def write(folder: Path, seed: int) -> Path:
    return write_picture_model(folder, seed=seed, head_dim=32)  # of vLLM's attention on CPU


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("pictured") / "model", 5)


@pytest.fixture(scope="module")
def server(
    environment: str,
    pictured: Path,
    kept: Callable[[VllmServer], Iterator[VllmServer]],
) -> Iterator[VllmServer]:
    config = VllmConfig(max_batch=8, start_deadline_s=580)
    log = pictured.with_name("vllm.log")
    yield from kept(VllmServer(config, pictured, log, 0, environment, cpu=True))


class TestVllmImages(EngineImageTests):
    deadline_s = 120.0  # the machine may be busy
    tolerance = EngineConformance.tolerance

    @pytest.fixture
    def component(self, server: VllmServer) -> Subject:
        return installed("engine", "vllm", {"url": server.url, "max_batch": 8})

    @pytest.fixture
    def picture_model(self, tmp_path: Path) -> Path:
        return write(tmp_path / "pictured", 0)

    @pytest.fixture
    def other_picture_model(self, tmp_path: Path) -> Path:
        return write(tmp_path / "pictured-otherwise", 1)


def transparent() -> bytes:
    """A PNG with an alpha channel, which other readers than ours would blend with white."""
    pixels = np.random.default_rng(6).integers(0, 256, (9, 9, 4), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels, "RGBA").save(file, "PNG")
    return file.getvalue()


def requests(model: ImageModel) -> list[GenerateRequest]:
    """No image, one, another for the same tokens, a transparent one, and several of which one comes twice."""
    prompts = [
        prompt(model, [3, 4, 5]),
        prompt(model, picture(1), [5, 6]),
        prompt(model, picture(2), [5, 6]),
        prompt(model, [4], transparent(), [6]),
        prompt(model, [7], picture(3), [8], picture(1), picture(3), picture(4, (40, 3)), [9, 10]),
    ]
    sampling = Sampling(8, ignore_eos=True)
    return [
        GenerateRequest(str(number), tokens, sampling, images=images)
        for number, (tokens, images) in enumerate(prompts)
    ]


async def agree(engine: Engine, other: Engine, sent: list[GenerateRequest]) -> list[GenerateResult]:
    results = list(await asyncio.gather(*map(engine.generate, sent)))
    for request, result in zip(sent, results, strict=True):
        tokens = np.concatenate([request.prompt, result.tokens])
        expected, scored = [
            await (
                one.score_images(tokens, request.images)  # type: ignore[attr-defined]
                if request.images
                else one.score(tokens)
            )
            for one in (other, engine)
        ]
        np.testing.assert_allclose(result.logprobs, expected[len(request.prompt) :], atol=GAP)
        np.testing.assert_allclose(scored, expected, atol=GAP)
    return results


def test_vllm_and_torch_agree_on_images_before_and_after_a_swap(
    server: VllmServer, pictured: Path, tmp_path: Path
) -> None:
    other = write(tmp_path / "other", 7) / "model.safetensors"

    def engine(name: str, **keys: object) -> Engine:
        (build,) = installed("engine", name, keys).variants.values()
        made: Engine = build(context("engine", tmp_path))
        return made

    async def main() -> None:
        vllm = engine("vllm", url=server.url, max_batch=8)
        torch_engine = engine("torch", device="cpu", cache_gb=0.05)
        sent = requests(ImageModel.of(pictured))
        async with asyncio.timeout(600):
            await vllm.start(pictured)
            await torch_engine.start(pictured)
            try:
                before = await agree(vllm, torch_engine, sent)
                assert before[1].logprobs.tolist() != before[2].logprobs.tolist()
                for one in (vllm, torch_engine):
                    await one.pause("keep")
                    await one.load_weights(WeightSource("p", 1, other, "", 0, 0.0))
                    await one.resume()
                after = await agree(vllm, torch_engine, sent)
                assert {int(v) for result in after for v in result.versions} == {1}
            finally:
                await torch_engine.close()
                await vllm.close()

    asyncio.run(main())
