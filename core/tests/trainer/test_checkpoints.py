from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.trainer.checkpoints import Checkpoints, NoRoom


class Trainer:
    def __init__(self) -> None:
        self.fail: Exception | None = None

    def save(self, directory: Path) -> None:
        (directory / "weights").write_text("half")
        if self.fail:
            raise self.fail
        (directory / "weights").write_text("whole")


def updates(checkpoints: Checkpoints) -> list[int]:
    return list(checkpoints.saved())


def test_the_newest_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "p", "p", keep=2)
    for number in (1, 2, 10):
        folder = checkpoints.save(_trainer(), number, version=number)
    assert updates(checkpoints) == [2, 10]
    assert json.loads((folder / "checkpoint.json").read_text())["version"] == 10
    assert (folder / "weights").read_text() == "whole"


def test_an_interrupted_save_leaves_the_older_checkpoints_and_is_written_again(
    tmp_path: Path,
) -> None:
    checkpoints = Checkpoints(tmp_path, "p", keep=2)
    checkpoints.save(_trainer(), 1, version=1)
    broken = _trainer()
    broken.fail = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        checkpoints.save(broken, 2, version=2)
    for full in (
        OSError(28, "No space left on device"),
        RuntimeError("os error 28: No space left on device"),
    ):
        broken.fail = full
        with pytest.raises(NoRoom, match=r"update-00000002: .*No space left"):
            checkpoints.save(broken, 2, version=2)
        with pytest.raises(NoRoom):
            checkpoints.save(broken, 1, version=1)
    assert updates(checkpoints) == [1]
    checkpoints.save(_trainer(), 2, version=2)
    assert updates(checkpoints) == [1, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["update-00000001", "update-00000002"]


def _trainer() -> Any:
    return Trainer()


def test_later_checkpoints_are_forgotten(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "p", keep=9)
    for number in (1, 2, 3):
        checkpoints.save(_trainer(), number, version=number)
    checkpoints.forget_after(2)
    assert updates(checkpoints) == [1, 2]
