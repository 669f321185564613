"""Prompt sources that are merged into one."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_contrib_merged.config import MergedConfig
from astraflow_contrib_merged.source import Merged
from astraflow_core.errors import PromptError
from astraflow_core.types import Prompt
from astraflow_testing.conformance.prompt_source import Damaged, PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, context, installed


class Few:
    def __init__(self, config, context):
        pass

    def __len__(self):
        return 2

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        return Prompt(f"few{index}", {"prompt": str(index), "source": "what it said itself"})


class Many(Few):
    def __len__(self):
        return 3


class Nothing(Few):
    def __len__(self):
        return 0


def merged(**sources):
    tables = {name: {"use": f"{__name__}:{use.__name__}"} for name, use in sources.items()}
    return Merged(MergedConfig.model_validate({"sources": tables}), context("dataflow", Path(".")))


def test_all_prompts_are_there_with_the_name_of_their_source():
    source = merged(a=Few, b=Many)
    assert [source[i].id for i in range(len(source))] == [
        "a/few0", "a/few1", "b/few0", "b/few1", "b/few2",
    ]  # fmt: skip
    assert [source[i].data["source"] for i in range(5)] == ["a", "a", "b", "b", "b"]
    assert source[3].data["prompt"] == "1"


def test_a_source_without_prompts_is_named():
    with pytest.raises(PromptError, match="source 'b' has no prompts"):
        merged(a=Few, b=Nothing)


SOURCES = """
from astraflow_core.types import Prompt


class Two:
    def __init__(self, config, context):
        pass

    def __len__(self):
        return 2

    def __getitem__(self, index):
        if not 0 <= index < 2:
            raise IndexError(index)
        return Prompt(str(index), {"prompt": f"{index} + 1?", "answer": index + 1})
"""


def test_what_is_no_index_is_refused():
    source = merged(a=Few, b=Many)
    for index in (-1, 5):
        with pytest.raises(IndexError):
            source[index]


class TestMerged(PromptSourceConformance):
    @pytest.fixture(autouse=True)
    def sources(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "some_prompts.py").write_text(SOURCES)
        (tmp_path / "no_prompts.py").write_text(SOURCES.replace("return 2", "return 0"))
        monkeypatch.syspath_prepend(tmp_path)

    @pytest.fixture
    def component(self) -> Subject:
        two = {"use": "some_prompts:Two"}
        return installed(
            "prompt_source",
            "merged",
            {"sources": {"a": two, "b": two, "c": two}},
            {"sources": {"only": two}},
        )

    @pytest.fixture
    def damaged(self) -> list[Damaged]:
        keys = {"sources": {"b": {"use": "no_prompts:Two"}}}
        return [Damaged(installed("prompt_source", "merged", keys), ("source 'b'",))]
