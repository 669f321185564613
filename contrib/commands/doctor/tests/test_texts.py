"""What the doctor says of tokenizers and stop texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from astraflow_contrib_doctor import texts
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_tiny_model.folder import write_tiny_model

OWN = ["x12=", "87"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model", hidden=8, layers=1, heads=1, kv_heads=1)


def edit(folder: Path, name: str, **changes: object) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def levels(folder: Path, own: list[str] = OWN) -> list[str]:
    found = list(texts.check_tokenizer("solver", FolderTokenizer(folder), folder, own))
    assert all(finding.fix for finding in found if finding.level != "ok")
    return [finding.level for finding in found]


def test_the_tokenizer_of_the_model_is_sound(folder: Path) -> None:
    assert levels(folder) == ["ok"]


def test_the_tokenizer_of_another_model_is_a_problem(folder: Path) -> None:
    edit(folder, "config.json", vocab_size=10)
    assert levels(folder)[0] == "problem"


def test_an_end_of_sequence_outside_of_the_vocabulary_is_a_problem(folder: Path) -> None:
    edit(folder, "generation_config.json", eos_token_id=27)
    assert levels(folder)[0] == "problem"


def test_no_end_of_sequence_is_a_warning(folder: Path) -> None:
    edit(folder, "generation_config.json", eos_token_id=None)
    edit(folder, "config.json", eos_token_id=None)
    edit(folder, "tokenizer_config.json", eos_token=None)
    assert levels(folder) == ["warning", "ok"]


def test_texts_that_do_not_come_back_are_a_warning(folder: Path) -> None:
    assert levels(folder, [*OWN, "Ünknown"]) == ["warning"]


def test_stop_texts_have_to_be_tokens(folder: Path) -> None:
    tokenizer = FolderTokenizer(folder)
    assert list(texts.check_stops("solver", tokenizer, [";", "=="])) == []
    (found,) = texts.check_stops("solver", tokenizer, ["ünknown"])
    assert found.level == "problem"


def test_the_probe_begins_with_the_prompts_of_the_run(folder: Path) -> None:
    prompts = texts.probe_prompts(FolderTokenizer(folder), OWN, 27, 8)
    assert prompts[0].tolist() == FolderTokenizer(folder).encode("x12=").tolist()
    assert len(prompts) == 3 and all(prompt.dtype == np.int32 for prompt in prompts)
    assert len(texts.probe_prompts(FolderTokenizer(folder), ["9" * 500], 27, 1)[0]) == 64
    alone = texts.probe_prompts(FolderTokenizer(folder), [], 1, 4)
    assert [prompt.tolist() for prompt in alone] == [[0]]


def test_texts_are_found_wherever_they_lie_in_a_prompt() -> None:
    data = {"messages": [{"role": "user", "content": "hello"}], "answer": 3, "prompt": "x", "e": ""}
    assert list(texts.own_texts(data)) == ["x", "user", "hello"]
