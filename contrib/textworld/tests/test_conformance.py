"""The prompt sources; the environment is tested beside the real TextWorld in tests/test_textworld.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_contrib_textworld.config import TextWorldFolderConfig
from astraflow_contrib_textworld.sources import TextWorldFolder
from astraflow_core.errors import PromptError
from astraflow_testing.conformance.prompt_source import Damaged, PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, context, installed

NOWHERE = context("dataflow", Path("/nonexistent"))


def filled(folder: Path, count: int) -> Path:
    for number in range(count):
        (folder / f"game-{number:02}.z8").touch()
        (folder / f"game-{number:02}.json").write_text(f'{{"seed": {number}}}')
    return folder


class TestTextWorldGames(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        held_out = {"size": 5, "split": "held_out", "kind": "custom", "settings": {"world_size": 2}}
        return installed("prompt_source", "textworld_games", {"size": 10}, held_out)


class TestTextWorldFolder(PromptSourceConformance):
    @pytest.fixture
    def component(self, tmp_path: Path) -> Subject:
        path = str(filled(tmp_path, 20))
        few = {"path": path, "split": "train", "limit": 3}
        return installed("prompt_source", "textworld_folder", {"path": path}, few)

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> list[Damaged]:
        lone, empty, nowhere = (tmp_path / name for name in ("lone", "empty", "nowhere"))
        for folder in (lone, empty):
            folder.mkdir()
        (lone / "one.z8").touch()
        told = {
            lone: ("one.z8 has no one.json",),
            empty: ("empty", "tw-make KIND --output"),
            nowhere: ("nowhere", "No such file"),
        }
        return [
            Damaged(installed("prompt_source", "textworld_folder", {"path": str(folder)}), names)
            for folder, names in told.items()
        ]


def names(folder: Path, **keys: object) -> list[str]:
    source = TextWorldFolder(TextWorldFolderConfig(path=folder, **keys), NOWHERE)
    return [Path(source[at].data["file"]).stem for at in range(len(source))]


def test_the_content_of_a_game_decides_its_split(tmp_path: Path) -> None:
    filled(tmp_path, 40)
    train, held_out = names(tmp_path, split="train"), names(tmp_path, split="held_out")
    assert sorted(train + held_out) == names(tmp_path) and 3 <= len(held_out) <= 15
    # A copy under another name is the same game.
    for suffix in (".z8", ".json"):
        (tmp_path / f"copy{suffix}").write_bytes((tmp_path / f"{held_out[0]}{suffix}").read_bytes())
    assert names(tmp_path, split="train") == train
    assert set(names(tmp_path, split="held_out")) == {"copy", *held_out[1:]}


def test_a_split_without_games_is_named(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    other = "held_out" if names(tmp_path, split="all") == train_of(tmp_path) else "train"
    with pytest.raises(PromptError, match=f"has no games of split '{other}'"):
        names(tmp_path, split=other)


def train_of(folder: Path) -> list[str]:
    try:
        return names(folder, split="train")
    except PromptError:
        return []
