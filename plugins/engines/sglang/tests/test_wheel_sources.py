"""What the wheel of SGLang itself says, without a stand-in: with ``SGLANG_SOURCES``, see ``sglang_behaviours``."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sglang_images import REASONS, TOWERS

from astraflow_core.types import GenerateRequest, Sampling
from astraflow_plugin_sglang.generation import body_of, body_of_score, read
from astraflow_testing.images.pictures import picture, prompt, write_picture_model
from astraflow_wire.images.model import ImageModel

SOURCES = Path(os.environ.get("SGLANG_SOURCES", ""), "sglang")

pytestmark = pytest.mark.skipif(
    "SGLANG_SOURCES" not in os.environ, reason="SGLANG_SOURCES names no unpacked wheel"
)


@pytest.fixture(scope="module")
def schema() -> ModuleType:
    """The server's own contract of its interface: a module that needs nothing of SGLang."""
    spec = importlib.util.spec_from_file_location(
        "sglang_api_types", SOURCES / "api" / "v1" / "api_types.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where msgspec looks up what annotations name
    spec.loader.exec_module(module)
    return module


def test_our_requests_keep_the_contract(schema: ModuleType) -> None:
    request = GenerateRequest(
        "a", np.array([5, 9], np.int32), Sampling(3, 0.7, 0.9, 4, 0.1, (2,), ignore_eos=True)
    )
    tokens = np.array([5, 9, 3], np.int32)
    for body in (body_of("a", request), body_of_score("b", tokens)):
        sent = json.loads(json.dumps(body))
        kept = schema.GenerateRequest.from_json_value(sent).to_json_value()
        assert {key: kept[key] for key in sent if key != "sampling_params"} == {
            key: value for key, value in sent.items() if key != "sampling_params"
        }
        for key, value in sent["sampling_params"].items():
            assert kept["sampling_params"][key] == value
    wrong = {**body_of("a", request), "sampling_params": {"most_tokens": 3}}
    with pytest.raises(schema.JsonContractError, match="most_tokens"):
        schema.GenerateRequest.from_json_value(wrong)


def test_an_answer_by_the_contract_is_read(schema: ModuleType) -> None:
    meta = {
        "id": "a",
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "cached_tokens": 0,
        "weight_version": "3",
        "output_token_logprobs": [[-0.5, 7, None], [-1.5, 8, None]],
        "weight_versions": [{"version": "2", "start": 0, "end": 1}, {"version": "3", "start": 1, "end": 2}],
    }  # fmt: skip
    answer = schema.GenerateResponse.from_json_value({"output_ids": [7, 8], "meta_info": meta})
    found = read(json.dumps(answer.to_json_value()).encode())
    assert [token for _, token, _ in found.output_token_logprobs] == [7, 8]
    assert [span.version for span in found.weight_versions] == ["2", "3"]
    assert found.finish_reason is not None and found.finish_reason.type == "length"


def test_our_requests_with_images_keep_the_contract(schema: ModuleType, tmp_path: Path) -> None:
    model = ImageModel.of(write_picture_model(tmp_path / "model"))
    tokens, images = prompt(model, [5], picture(1), picture(2), [6])
    request = GenerateRequest("a", tokens, Sampling(3), images=images)
    for body in (body_of("a", request), body_of_score("b", tokens, images, model.token)):
        kept = schema.GenerateRequest.from_json_value(json.loads(json.dumps(body))).to_json_value()
        for key in ("input_ids", "image_data", "token_ids_logprob"):
            assert kept.get(key) == body.get(key)
    meta = {"input_token_logprobs": [], "input_token_ids_logprobs": [None, [[-0.5, 27, None]]]}
    answer = schema.GenerateResponse.from_json_value({"output_ids": [], "meta_info": meta})
    found = read(json.dumps(answer.to_json_value()).encode()).input_token_ids_logprobs
    assert found == [None, [(-0.5, 27, None)]]


def test_the_sources_show_why_images_need_a_class_of_ours() -> None:
    missing = []
    for name, (_, cites) in REASONS.items():
        for where in cites:
            lines = (SOURCES / where.file).read_text(encoding="utf-8").splitlines()
            text = "\n".join(lines[where.first - 1 : where.last])
            missing += [(name, where, word) for word in where.words if word not in text]
    assert not missing


def test_no_class_has_the_name_of_a_tower() -> None:
    named = set()
    for file in (SOURCES / "srt" / "models").rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EntryClass":
                named |= {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
    assert "CLIPModel" in named and named.isdisjoint(TOWERS)
