"""Images in prompts, against transformers."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from astraflow_core.errors import UserError
from astraflow_core.types import GenerateRequest, GenerateResult, Images, Sampling, WeightSource
from astraflow_plugin_torch_engine.engine import TorchEngine
from astraflow_testing.images.pictures import picture, prompt, write_picture_model
from astraflow_wire.images.model import ImageModel

Serve = Callable[..., AbstractAsyncContextManager[TorchEngine]]


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_picture_model(tmp_path_factory.mktemp("pictured"), seed=5)


def reference(
    folder: Path, tokens: npt.NDArray[np.int32], images: Images
) -> npt.NDArray[np.float32]:
    """Log-probs of each token by transformers' own merge of images and text: float32 ``[T]``, the first is 0."""
    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    with torch.no_grad():
        logprobs = model(input_ids=ids, **pixels(folder, images)).logits[0].log_softmax(-1)
    found = logprobs[:-1].gather(-1, ids[0, 1:, None])[:, 0].numpy()
    return np.concatenate([np.zeros(1, np.float32), found])


def pixels(folder: Path, images: Images) -> dict[str, Any]:
    """What the processor of transformers makes of images, as arguments of its model."""
    if not images:
        return {}
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    opened = [Image.open(io.BytesIO(image.data)) for image in images]
    return dict(processor(images=opened, return_tensors="pt"))


def asked(name: str, tokens: Any, images: Images, temperature: float = 0.0) -> GenerateRequest:
    sampling = Sampling(8, temperature=temperature, ignore_eos=True)
    return GenerateRequest(name, tokens, sampling, images=images)


def whole(request: GenerateRequest, result: GenerateResult) -> Any:
    return np.concatenate([request.prompt, result.tokens])


def test_what_is_sampled_and_scored_is_what_transformers_says(serve: Serve, pictured: Path) -> None:
    """Requests of other lengths, with no image, one and several, of which two share their tokens, in one batch; and
    again with other weights."""
    model = ImageModel.of(pictured)
    prompts = [
        prompt(model, [3, 4, 5]),
        prompt(model, picture(1), [5, 6]),
        prompt(model, picture(2), [5, 6]),
        prompt(model, [7], picture(3), [8], picture(1), picture(4, (40, 3)), [9, 10, 11]),
    ]

    async def play() -> None:
        async with serve(pictured) as engine:
            for folder, version in ((pictured, 0), (other, 1)):
                if version:
                    path = folder / "model.safetensors"
                    await engine.load_weights(WeightSource("p", version, path, "", 0, 0.0))
                sent = [asked(str(n), tokens, images) for n, (tokens, images) in enumerate(prompts)]
                results = await asyncio.gather(*map(engine.generate, sent))
                for request, result in zip(sent, results, strict=True):
                    # Transformers takes every placeholder for one of an image, a sampled one too.
                    assert model.token not in result.tokens, "choose another seed"
                    tokens, start = whole(request, result), len(request.prompt)
                    expected = reference(folder, tokens, request.images)
                    np.testing.assert_allclose(result.logprobs, expected[start:], atol=1e-4)
                    scored = await (
                        engine.score_images(tokens, request.images)
                        if request.images
                        else engine.score(tokens)
                    )
                    np.testing.assert_allclose(scored, expected, atol=1e-4)
                assert results[1].logprobs.tolist() != results[2].logprobs.tolist()

    other = write_picture_model(pictured / "other", seed=7)
    asyncio.run(play())


def test_equal_prompts_are_prefilled_once(serve: Serve, pictured: Path) -> None:
    tokens, images = prompt(ImageModel.of(pictured), picture(1), [5, 6])

    async def play() -> dict[str, float]:
        async with serve(pictured) as engine:
            await engine.pause("keep")
            sent = [
                asyncio.create_task(engine.generate(asked(str(number), tokens, images, 1.0)))
                for number in range(4)
            ]
            while (await engine.health())["waiting"] < 4:
                await asyncio.sleep(0)
            await engine.resume()
            await asyncio.gather(*sent)
            return await engine.health()

    found = asyncio.run(play())
    assert (found["prompt_tokens"], found["prefill_tokens"]) == (24, 6)


def test_images_that_do_not_fit_are_refused(serve: Serve, pictured: Path, folder: Path) -> None:
    model = ImageModel.of(pictured)
    tokens, images = prompt(model, picture(1), [5, 6])
    damaged = replace(images[0], data=images[0].data[:60], digest="0" * 64)

    async def refusal(at: Path, given: Images, error: type[Exception]) -> str:
        async with serve(at) as engine:
            with pytest.raises(error) as caught:
                await engine.generate(asked("a", tokens, given))
            with pytest.raises(error):
                await engine.score_images(tokens, given)
        return str(caught.value)

    def said(at: Path, given: Images, error: type[Exception]) -> str:
        return asyncio.run(refusal(at, given, error))

    tokens_of_text = np.minimum(tokens, 26)
    assert "4 placeholders, token 27" in said(pictured, (images[0].moved(1),), ValueError)
    assert "4 placeholders" in said(pictured, (images[0].moved(5),), ValueError)
    assert "is damaged" in said(pictured, (damaged,), UserError)
    tokens = tokens_of_text
    assert "reads no images" in said(folder, images, UserError)


def test_a_model_without_a_processor_is_refused(serve: Serve, tmp_path: Path) -> None:
    folder = write_picture_model(tmp_path)
    (folder / "preprocessor_config.json").unlink()

    async def start() -> None:
        async with serve(folder):
            raise AssertionError("it serves")

    with pytest.raises(UserError, match="model without a processor"):
        asyncio.run(start())
