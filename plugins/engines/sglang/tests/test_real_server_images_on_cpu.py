"""Images on a real SGLang server on CPU, whose model and image processor are ours (``in_server``) and all else SGLang's: what the
engine suite demands, log-probs of transformers, and the prefix cache; see ``test_real_server_on_cpu`` for what it needs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from real_server import BY_HAND, running_on_cpu

from astraflow_core.types import GenerateRequest, Sampling
from astraflow_plugin_sglang.generation import PATH, body_of
from astraflow_serving.http import ServerClient
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance._models.engine_rig import Served, serve, source
from astraflow_testing.conformance._models.images import llava
from astraflow_testing.conformance._models.images.engine_image_tests import EngineImageTests
from astraflow_testing.conformance._models.images.rows import Row, pictured_rows
from astraflow_testing.conformance.engine import EngineConformance
from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.images.pictures import write_picture_model
from astraflow_tiny_model.folder import ALPHABET

pytestmark = [pytest.mark.backend, *BY_HAND]
MAX_BATCH, DEADLINE_S = 8, 300.0
PLACEHOLDER = 20
"""Not the last id of the vocabulary, which SGLang writes where images are."""


@pytest.fixture(scope="module", params=["in_place", "retract"])
def keep(request: pytest.FixtureRequest) -> str:
    """With ``retract`` the server has its prefix cache and its overlap scheduler."""
    value: str = request.param
    return value


@pytest.fixture(scope="module")
def server(keep: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = write_model(tmp_path_factory.mktemp("sglang") / "model", 9)
    with running_on_cpu(model, max_batch=MAX_BATCH, keep=keep) as url:
        yield url


def write_model(folder: Path, seed: int) -> Path:
    return write_picture_model(folder, seed=seed, image=ALPHABET[PLACEHOLDER])


def engine(server: str, keep: str) -> Subject:
    return installed("engine", "sglang", {"url": server, "max_batch": MAX_BATCH, "keep": keep})


class TestSGLangImagesOnCpu(EngineImageTests):
    deadline_s = DEADLINE_S
    tolerance = EngineConformance.tolerance

    @pytest.fixture
    def component(self, server: str, keep: str) -> Subject:
        return engine(server, keep)

    @pytest.fixture
    def picture_model(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "pictured", 0)

    @pytest.fixture
    def other_picture_model(self, tmp_path: Path) -> Path:
        return write_model(tmp_path / "pictured-otherwise", 1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", 3)


def test_log_probs_are_those_of_transformers(
    server: str, keep: str, model: Path, tmp_path: Path
) -> None:
    async def scenario(served: Served) -> None:
        for tokens, images in pictured_rows(model)[1:]:
            greedy = Sampling(8, temperature=0, ignore_eos=True)
            result = await served.launch(greedy, tokens.tolist(), images=images).task
            assert PLACEHOLDER not in result.tokens, "choose another seed"
            whole = np.concatenate([tokens, result.tokens])
            expected = by_transformers(model, (whole, images))[len(tokens) - 1 :]
            np.testing.assert_allclose(result.logprobs, expected, atol=1e-4)

    serve(engine(server, keep), model, tmp_path, DEADLINE_S, scenario)


def by_transformers(folder: Path, row: Row) -> Any:
    """Log-probs of the tokens after the first. Every placeholder is one of an image to it, also a sampled one."""
    import torch
    from transformers import AutoImageProcessor, AutoModelForImageTextToText

    tokens, images = row
    loaded: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    opened = [Image.open(io.BytesIO(image.data)) for image in images]
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    with torch.no_grad():
        seen = loaded.eval()(input_ids=ids, **processor(images=opened, return_tensors="pt"))
    logprobs = seen.logits[0].log_softmax(-1)
    return logprobs[:-1].gather(-1, ids[0, 1:, None])[:, 0].numpy()


def test_an_image_that_is_read_again_has_the_new_tower(
    server: str, keep: str, model: Path, tmp_path: Path
) -> None:
    """A request under way at a swap is computed again, so what the old tower had made of its image must be forgotten."""
    if keep != "retract":
        pytest.skip("keeps keys and values")
    other = write_model(tmp_path / "other", 1) / "model.safetensors"
    files = model / "model.safetensors", other

    async def scenario(served: Served) -> None:
        tokens, images = pictured_rows(model)[3]
        before = (await served.engine.health())["tokens_generated"]
        sent = served.launch(Sampling(30, ignore_eos=True), tokens.tolist(), images=images)
        await served.generated(before + 3)
        await served.engine.pause("keep")
        await served.engine.load_weights(source(other, 1))
        await served.engine.resume()
        result = await sent.task
        assert set(result.versions.tolist()) == {0, 1}
        read = np.concatenate([tokens, result.tokens[:-1]])
        both = [qwen3.log_softmax(llava.logits(model, file, read, images)) for file in files]
        rows = range(len(tokens) - 1, len(read))
        expected = [
            both[v][row, t] for v, row, t in zip(result.versions, rows, result.tokens, strict=True)
        ]
        np.testing.assert_allclose(result.logprobs, expected, atol=1e-4)

    serve(engine(server, keep), model, tmp_path, DEADLINE_S, scenario)


def test_a_cached_prefix_is_found_by_its_image(
    server: str, keep: str, model: Path, tmp_path: Path
) -> None:
    rows = pictured_rows(model)

    async def scenario(served: Served) -> None:
        client = ServerClient("SGLang server", server, DEADLINE_S)

        async def cached(name: str, row: Row) -> int:
            tokens, images = row
            request = GenerateRequest(name, tokens, Sampling(1), images=images)
            body = {**body_of(f"{tmp_path.name}-{name}", request), "stream": False}
            answer = json.loads(await client.ask(PATH, body))
            found: int = answer["meta_info"]["cached_tokens"]
            return found

        try:
            # The same tokens behind another image, and the same ones again.
            told = [await cached(str(n), rows[row]) for n, row in enumerate((1, 2, 1))]
        finally:
            await client.close()
        assert told == [0, 0, len(rows[1][0]) - 1 if keep == "retract" else 0]

    serve(engine(server, keep), model, tmp_path, DEADLINE_S, scenario)
