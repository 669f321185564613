"""Images in the request format of SGLang's ``/generate``, images that are refused before a request is sent, and our
image processor there."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sglang_pictures import images_of

from astraflow_core.errors import AstraFlowError, UserError
from astraflow_core.types import GenerateRequest, Images, Sampling
from astraflow_plugin_sglang.config import SGLangConfig
from astraflow_plugin_sglang.generation import body_of, body_of_score, read_scores
from astraflow_plugin_sglang.images import IN_SERVER, ImageFiles, image_data
from astraflow_plugin_sglang.server import sglang_server
from astraflow_testing.images.pictures import picture, prompt, write_picture_model
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_wire.images.model import ImageModel


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_picture_model(tmp_path_factory.mktemp("pictured") / "model")


@pytest.fixture
def row(pictured: Path) -> tuple[Any, Images]:
    return prompt(ImageModel.of(pictured), [7], picture(3), [8], picture(1, (40, 3)), [9])


def test_files_go_beside_the_tokens_with_their_places(row: tuple[Any, Images]) -> None:
    tokens, images = row
    request = GenerateRequest("r", tokens, Sampling(4), images=images)
    sampled, scored = body_of("id", request), body_of_score("id", tokens, images, 27)
    for body in (sampled, scored):
        assert images_of(body) == images
        assert body["input_ids"] == tokens.tolist()
    assert scored["token_ids_logprob"] == [27] and "token_ids_logprob" not in sampled
    plain = body_of("id", GenerateRequest("r", tokens, Sampling(4))), body_of_score("id", tokens)
    assert not any({"image_data", "token_ids_logprob"} & body.keys() for body in plain)


def scored(row: tuple[Any, Images], of_placeholder: int) -> bytes:
    """An answer of a server that cuts ids beyond the vocabulary of 100 to its last, and writes 0 for that."""
    tokens, images = row
    inside = np.zeros(len(tokens), bool)
    for image in images:
        inside[image.start : image.end] = True
    inputs = [
        [-float(n), 0 if hidden else int(token), None]
        for n, (token, hidden) in enumerate(zip(tokens, inside, strict=True))
    ]
    asked = [None, *([[-100.0 - n, 27, None]] for n in range(1, of_placeholder))]
    meta = {"input_token_logprobs": inputs, "input_token_ids_logprobs": asked}
    return json.dumps({"meta_info": meta}).encode()


def test_a_sequence_to_score_may_begin_with_an_image(pictured: Path) -> None:
    row = prompt(ImageModel.of(pictured), picture(3), [8])
    scores = read_scores(scored(row, 5), row[0], 100, row[1])
    assert scores.tolist() == [0, -101, -102, -103, -4]


def test_scores_where_images_are_are_those_of_the_placeholder(row: tuple[Any, Images]) -> None:
    tokens, images = row
    scores = read_scores(scored(row, len(tokens)), tokens, 100, images)
    expected = [0, -101, -102, -103, -104, -5, -106, -107, -108, -109, -10]
    assert scores.tolist() == expected
    for wrong in (scored(row, 3), scored((tokens[:-1], images), len(tokens) - 1)):
        with pytest.raises(AstraFlowError, match="SGLang scored"):
            read_scores(wrong, tokens, 100, images)
    with pytest.raises(AstraFlowError, match="not the 11 given"):
        read_scores(scored(row, len(tokens)), tokens, 100)


def test_images_that_do_not_fit_are_refused(
    pictured: Path, row: tuple[Any, Images], tmp_path: Path
) -> None:
    tokens, images = row
    damaged = replace(images[0], data=images[0].data[:60])

    def said(at: Path, given: Images, error: type[Exception]) -> str:
        with pytest.raises(error) as caught:
            asyncio.run(ImageFiles(at).check(tokens, given))
        return str(caught.value)

    asyncio.run(ImageFiles(pictured).check(tokens, images))
    assert "4 placeholders, token 27" in said(pictured, (images[0].moved(1),), ValueError)
    assert f"image {damaged.digest}" in said(pictured, (damaged,), UserError)
    text = write_tiny_model(tmp_path / "text")
    assert "engine 'sglang': the model in" in said(text, images, UserError)
    whole = write_picture_model(tmp_path / "whole")
    (whole / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match="model without a processor"):
        ImageFiles(whole)


def test_a_server_has_our_packages_for_a_model_that_reads_images(
    pictured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    text = write_tiny_model(tmp_path / "text")
    for model, ours in ((pictured, True), (text, False)):
        found = sglang_server(SGLangConfig(), model, tmp_path / "log", 0).environment
        assert ("SGLANG_EXTERNAL_MODEL_PACKAGE" in found) is ours
        path = found["PYTHONPATH"].split(os.pathsep)
        assert path == [str(IN_SERVER), "/elsewhere"] if ours else ["/elsewhere"]
        for name in ("MODEL", "MM_PROCESSOR") if ours else ():
            package = found[f"SGLANG_EXTERNAL_{name}_PACKAGE"]
            assert (IN_SERVER / package / "llava.py").is_file()


def test_what_runs_in_the_server_imports_what_its_interpreter_has() -> None:
    imported = set()
    for file in IN_SERVER.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    others = imported - sys.stdlib_module_names
    assert others == {"PIL", "sglang", "torch", "transformers"}


@dataclass
class Item:
    """As ``MultimodalDataItem`` of SGLang."""

    modality: str
    feature: Any
    offsets: list[tuple[int, int]]
    identity: bytes = b""

    def set_identity(self, identity: bytes) -> None:
        self.identity = identity


@dataclass
class Output:
    """As ``MultimodalProcessorOutput``."""

    mm_items: list[Item]
    input_ids: list[int]
    im_token_id: int


class BaseProcessor:
    """As ``BaseMultimodalProcessor``, without all that it does."""

    def __init__(self, *_: Any) -> None:
        pass


@dataclass
class Config:
    """What the processor reads of the configuration, and of the server's arguments."""

    image_token_index: int
    model_path: str


@pytest.fixture
def processor(pictured: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ours, over stand-ins for the classes of SGLang."""
    given: dict[str, dict[str, Any]] = {
        "sglang.srt.managers.schedule_batch": {
            "Modality": type("Modality", (), {"IMAGE": "image"}),
            "MultimodalDataItem": Item,
            "MultimodalProcessorOutput": Output,
        },
        "sglang.srt.models.llava": {"LlavaForConditionalGeneration": object},
        "sglang.srt.multimodal.processors.base_processor": {
            "BaseMultimodalProcessor": BaseProcessor
        },
    }
    for name, members in given.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
        while "." in name:
            name = name.rpartition(".")[0]
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
    file = IN_SERVER / "astraflow_sglang_processors" / "llava.py"
    spec = importlib.util.spec_from_file_location("processor_in_server", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = Config(27, str(pictured))
    return module.PlacedImageProcessor(config, config, None, None)


@pytest.mark.slow
def test_the_server_sees_the_pixels_that_the_trainer_sees(
    processor: Any, pictured: Path, row: tuple[Any, Images]
) -> None:
    from astraflow_torch_weights.pixels import ImagePixels

    tokens, images = row
    found = asyncio.run(processor.process_mm_data_async(image_data(images), tokens.tolist()))
    assert (found.input_ids, found.im_token_id) == (tokens.tolist(), 27)
    source = ImagePixels(pictured)
    for item, image in zip(found.mm_items, images, strict=True):
        assert item.offsets == [(image.start, image.end - 1)]
        assert item.identity.hex() == image.digest
        np.testing.assert_array_equal(item.feature.numpy(), source.pixels(image).numpy())


@pytest.mark.slow
def test_the_server_refuses_what_it_cannot_read(processor: Any, row: tuple[Any, Images]) -> None:
    tokens, images = row
    (written, _) = image_data(images)

    def said(text: str, ids: Any) -> str:
        with pytest.raises(ValueError) as caught:
            asyncio.run(processor.process_mm_data_async([text], ids))
        return str(caught.value)

    ids = tokens.tolist()
    assert "not text" in said(written, "<image>")
    assert "needs 4 placeholders" in said(written.replace("offset=1", "offset=2"), ids)
    assert "needs 0 placeholders" in said(written.replace("length=4", "length=0"), ids)
    assert "is not written as" in said("https://example.org/a.png", ids)
    assert "is damaged" in said(written[: written.index(",") + 81], ids)
