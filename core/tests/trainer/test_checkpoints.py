from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.config.models import CheckpointTable
from astraflow_core.errors import NoRoom, UserError
from astraflow_core.trainer.checkpoints import Checkpoints
from astraflow_core.trainer.digests import DamagedCheckpoint
from astraflow_core.trainer.saving import Saving

pytestmark = pytest.mark.timeout(60)


class Operations:
    """Writes its state in two parts; the second when :attr:`done`."""

    def __init__(self) -> None:
        self.fail: Exception | None = None
        self.done = True
        self.folder = Path()

    def save(self, directory: Path) -> None:
        (directory / "sub").mkdir()
        (directory / "weights").write_text("half")
        if self.fail:
            raise self.fail
        self.folder = directory

    def finish_save(self, wait: bool) -> bool:
        if self.done or wait:
            (self.folder / "sub" / "optimizer").write_text("whole")
        return self.done or wait


class Dataflow:
    def __init__(self) -> None:
        self.released: list[int] = []

    def release(self, updates: int) -> None:
        self.released.append(updates)


def operations() -> Any:
    return Operations()


def make(directory: Path, **keys: Any) -> Checkpoints:
    return Checkpoints(directory, "p", **{"keep": 2, "trainer": "t"} | keys)


def save(checkpoints: Checkpoints, done_by: Any, updates: int) -> Path:
    checkpoints.begin(done_by, updates, version=updates)
    folder = checkpoints.advance(done_by, wait=True)
    assert folder is not None
    return folder


def test_the_newest_stay(tmp_path: Path) -> None:
    checkpoints = make(tmp_path / "p", keep=3)
    for number in (1, 5, 7, 10, 11, 12):
        folder = save(checkpoints, operations(), number)
    assert list(checkpoints.saved()) == [10, 11, 12]
    facts = json.loads((folder / "checkpoint.json").read_text())
    assert facts["version"] == 12
    assert sorted(facts["files"]) == ["sub/optimizer", "weights"]
    assert checkpoints.sound() == checkpoints.saved()


def test_an_interrupted_save_leaves_the_older_checkpoints_and_is_written_again(
    tmp_path: Path,
) -> None:
    checkpoints = make(tmp_path)
    save(checkpoints, operations(), 1)
    broken = operations()
    broken.fail = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        checkpoints.begin(broken, 2, version=2)
    for full in (
        OSError(28, "No space left on device"),
        RuntimeError("os error 28: No space left on device"),
    ):
        broken.fail = full
        with pytest.raises(NoRoom, match=r"update-00000002: .*No space left"):
            checkpoints.begin(broken, 2, version=2)
        with pytest.raises(NoRoom):
            checkpoints.begin(broken, 1, version=1)
    assert list(checkpoints.saved()) == [1]
    save(checkpoints, operations(), 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["update-00000001", "update-00000002"]


def test_later_checkpoints_and_unfinished_ones_are_forgotten(tmp_path: Path) -> None:
    checkpoints = make(tmp_path, keep=9)
    for number in (1, 2, 3):
        save(checkpoints, operations(), number)
    checkpoints.begin(operations(), 4, version=4)
    make(tmp_path).forget_after(2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["update-00000001", "update-00000002"]


def _truncate(folder: Path) -> None:
    (folder / "weights").write_text("ha")


def _flip(folder: Path) -> None:
    (folder / "weights").write_text("hal~")


def _remove(folder: Path) -> None:
    (folder / "sub" / "optimizer").unlink()


def _garble(folder: Path) -> None:
    (folder / "checkpoint.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_truncate, "weights has 2 bytes, 4 were saved"),
        (_flip, "weights has changed since it was saved"),
        (_remove, "sub/optimizer is missing"),
        (_garble, "checkpoint.json: Object missing required field"),
    ],
)
def test_a_damaged_one_is_named_and_the_one_before_is_used(
    damage: Callable[[Path], None], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = make(tmp_path, keep=3)
    for number in (1, 2, 3):
        folder = save(checkpoints, operations(), number)
    damage(folder)
    assert list(checkpoints.sound()) == [1, 2]
    assert f"update-00000003: {said}" in caplog.text


def test_an_older_one_is_verified_if_it_is_chosen(tmp_path: Path) -> None:
    checkpoints = make(tmp_path)
    older = save(checkpoints, operations(), 1)
    newest = save(checkpoints, operations(), 2)
    _flip(older)
    assert list(checkpoints.sound()) == [1, 2]
    assert checkpoints.chosen(2) == newest
    assert checkpoints.chosen(0) is None
    with pytest.raises(DamagedCheckpoint, match="update-00000001: weights has changed"):
        checkpoints.chosen(1)


def test_one_of_another_trainer_policy_or_number_of_ranks_is_refused(tmp_path: Path) -> None:
    save(make(tmp_path, ranks=2), operations(), 1)
    with pytest.raises(UserError, match=r"saved by 2 ranks, .*set trainer.ranks = 2"):
        make(tmp_path).sound()
    with pytest.raises(UserError, match="is of trainer 't', not 'other'"):
        make(tmp_path, trainer="other").sound()
    with pytest.raises(UserError, match="is of policy 'p', not 'q'"):
        Checkpoints(tmp_path, "q", keep=1, trainer="t").sound()
    assert list(make(tmp_path, reshards=True).sound()) == [1]


def saving(tmp_path: Path, dataflow: Any, done_by: Any, **keys: int) -> Saving:
    table = CheckpointTable(**{"every": 2, "keep": 2, **keys})
    return Saving(make(tmp_path, keep=table.keep), done_by, dataflow, table)


def test_nothing_is_released_before_it_is_on_the_disk(tmp_path: Path) -> None:
    dataflow, done_by = Dataflow(), operations()
    done_by.done = False
    one = saving(tmp_path, dataflow, done_by, keep=1)
    for update in (1, 2, 3):
        one.after_update(update, update)
        one.look(update, update)
    assert dataflow.released == []
    assert not list(tmp_path.glob("update-*"))
    one.after_update(4, 4)  # waits for the first, and begins the next
    assert dataflow.released == [2]
    one.finish(5, 5)
    assert dataflow.released == [2, 4, 5, 5]
    assert [p.name for p in tmp_path.glob("update-*")] == ["update-00000005"]
    assert one.take_stall_s() > 0
    assert one.take_stall_s() == 0


def test_two_are_kept_so_that_the_older_will_do(tmp_path: Path) -> None:
    dataflow = Dataflow()
    one = saving(tmp_path, dataflow, operations())
    one.begin_with(2)
    one.after_update(4, 4)
    one.finish(4, 4)
    assert dataflow.released == [2, 4]


def test_without_room_it_is_tried_at_every_opportunity(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataflow, done_by = Dataflow(), operations()
    done_by.fail = OSError(28, "No space left on device")
    one = saving(tmp_path, dataflow, done_by)
    one.after_update(2, 2)
    one.look(2, 2)
    one.after_update(3, 3)
    assert caplog.text.count("no checkpoint is saved until there is room") == 1
    with pytest.raises(NoRoom):
        one.finish(3, 3)
    done_by.fail = None
    one.look(3, 3)
    one.finish(3, 3)
    assert "there is room again: checkpoint of update 3 saved" in caplog.text
    assert dataflow.released[-1] == 3
