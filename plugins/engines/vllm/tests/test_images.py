"""Images in the request format of vLLM's ``/inference/v1/generate``, and images that are refused before a request is
sent."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from astraflow_core.errors import PreflightError, UserError
from astraflow_core.types import GenerateRequest, Sampling
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.images import RequestImages, features_of
from astraflow_plugin_vllm.requests import body_of, body_of_score
from astraflow_plugin_vllm.server import VllmServer
from astraflow_testing.images.pictures import picture, prompt, write_picture_model
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_wire.images.model import ImageModel


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_picture_model(tmp_path_factory.mktemp("pictured"))


def opened(item: str) -> tuple[Any, np.ndarray]:
    """As ``vllm.v1.serial_utils.MsgpackDecoder`` opens a ``MultiModalKwargsItem`` with one tensor: its field, and the tensor."""
    given = msgspec.msgpack.decode(
        base64.b64decode(item), ext_hook=lambda code, data: (code, bytes(data))
    )
    ((name, element),) = given.items()
    dtype, shape, (code, data) = element["data"]
    assert (name, code) == ("pixel_values", 3)
    return element["field"], np.frombuffer(data, dtype).reshape(shape)


def test_each_image_goes_with_its_place_its_pixels_and_a_hash_of_the_version(
    pictured: Path,
) -> None:
    model = ImageModel.of(pictured)
    tokens, images = prompt(model, [7], picture(3), [8], picture(1, (40, 3)), [9])
    items = asyncio.run(RequestImages(pictured).packed(tokens, images))
    features = features_of(images, items, "salt.3")
    assert features is not None
    assert features["mm_placeholders"] == {
        "image": [{"offset": 1, "length": 4}, {"offset": 6, "length": 4}]
    }
    assert features["mm_hashes"] == {"image": [f"salt.3.{image.digest}" for image in images]}
    request = GenerateRequest("r", tokens, Sampling(4), images=images)
    bodies = [
        body_of("id", request, (1,), "salt.3", False, None, features),
        body_of_score("id", tokens, None, features),
    ]
    assert all(body["features"] == features for body in bodies)
    assert all(body["token_ids"] == tokens.tolist() for body in bodies)
    for item, image in zip(features["kwargs_data"]["image"], images, strict=True):
        field, pixels = opened(item)
        assert field == ["batched", {"keep_on_cpu": False}]
        assert (pixels.dtype, pixels.shape) == (np.float32, (3, 8, 8))
        np.testing.assert_array_equal(pixels, of_transformers(pictured, image.data))


def of_transformers(folder: Path, data: bytes | memoryview) -> Any:
    import io

    from PIL import Image
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    return processor(images=[Image.open(io.BytesIO(data))], return_tensors="np")["pixel_values"][0]


def test_a_request_without_images_says_nothing_of_them(pictured: Path) -> None:
    tokens, _ = prompt(ImageModel.of(pictured), [3, 4])
    items = asyncio.run(RequestImages(pictured).packed(tokens, ()))
    request = GenerateRequest("r", tokens, Sampling(4))
    assert "features" not in body_of(
        "id", request, (), "s", False, None, features_of((), items, "")
    )


def test_images_that_do_not_fit_are_refused(pictured: Path, tmp_path: Path) -> None:
    tokens, images = prompt(ImageModel.of(pictured), picture(1), [5, 6])
    damaged = replace(images[0], data=images[0].data[:60], digest="0" * 64)

    def said(at: Path, given: Any, error: type[Exception]) -> str:
        with pytest.raises(error) as caught:
            asyncio.run(RequestImages(at).read(tokens, given))
        return str(caught.value)

    assert "4 placeholders, token 27" in said(pictured, (images[0].moved(1),), ValueError)
    assert "is damaged" in said(pictured, (damaged,), UserError)
    text = write_tiny_model(tmp_path / "text")
    assert "engine 'vllm': the model in" in said(text, images, UserError)
    whole = write_picture_model(tmp_path / "whole")
    (whole / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match="model without a processor"):
        RequestImages(whole)


def test_its_server_has_a_tokenizer_and_no_adapters(pictured: Path, tmp_path: Path) -> None:
    def command(folder: Path, **keys: Any) -> list[str]:
        return VllmServer(VllmConfig(**keys), folder, tmp_path / "log", 0, cpu=True).command

    given = command(pictured)
    assert "--skip-tokenizer-init" not in given
    assert given[given.index("--mm-processor-cache-gb") + 1] == "0"
    text = command(write_tiny_model(tmp_path / "text"))
    assert "--skip-tokenizer-init" in text and "--mm-processor-cache-gb" not in text
    with pytest.raises(PreflightError, match="leave lora_rank out"):
        command(pictured, lora_rank=4)
