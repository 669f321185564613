from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.config.models import CheckpointTable
from astraflow_core.errors import DeadlineExceeded, NoRoom, UserError
from astraflow_runtime.trainer.checkpoints.digests import DamagedCheckpoint
from astraflow_runtime.trainer.checkpoints.saving import Saving
from astraflow_runtime.trainer.checkpoints.store import Checkpoints

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
        self.last: list[bool] = []
        self.on_release: Callable[[], None] = lambda: None

    def release(self, updates: int, last: bool = False) -> None:
        self.on_release()
        self.released.append(updates)
        self.last.append(last)


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
    assert len(checkpoints.saved()) == 6
    checkpoints.delete_old()
    checkpoints.close()
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


def _other_policy(folder: Path) -> None:
    file = folder / "checkpoint.json"
    file.write_text(file.read_text().replace('"policy": "p"', '"policy": "q"'))


def _other_digest(folder: Path) -> None:
    file = folder / "checkpoint.json"
    *rest, before = file.read_text().rsplit('"xxh3_128": "', 1)
    file.write_text(f'{rest[0]}"xxh3_128": "{"1" if before[0] == "0" else "0"}{before[1:]}')


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_truncate, "weights has 2 bytes, 4 were saved"),
        (_flip, "weights has changed since it was saved"),
        (_remove, "sub/optimizer is missing"),
        (_garble, "checkpoint.json: Object missing required field"),
        (_other_policy, "checkpoint.json has changed since it was saved"),
        (_other_digest, "checkpoint.json has changed since it was saved"),
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
    with pytest.raises(UserError, match="belongs to trainer 't', not 'other'"):
        make(tmp_path, trainer="other").sound()
    with pytest.raises(UserError, match="belongs to policy 'p', not 'q'"):
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
    assert dataflow.released == [2]  # the models come before the last word
    one.leave(5, done=True)
    assert dataflow.released == [2, 5]
    assert [p.name for p in tmp_path.glob("update-*")] == ["update-00000005"]
    assert one.take_stall_s() > 0
    assert one.take_stall_s() == 0


def test_two_are_kept_so_that_the_older_will_do(tmp_path: Path) -> None:
    dataflow, done_by = Dataflow(), operations()
    done_by.done = False
    one = saving(tmp_path, dataflow, done_by)
    one.begin_with(2)
    one.after_update(4, 4)
    one.after_update(6, 6)  # waits for the first
    one.finish(6, 6)
    one.leave(6, done=True)
    assert dataflow.released == [2, 6]


@pytest.mark.parametrize(("keys", "released"), [({}, 4), ({"keep": 1}, 6), ({"every": 0}, 6)])
def test_a_run_that_was_stopped_can_continue_from_the_older_one(
    tmp_path: Path, keys: dict[str, int], released: int
) -> None:
    dataflow = Dataflow()
    one = saving(tmp_path, dataflow, operations(), **keys)
    one.begin_with(2)
    for update in (4, 6):
        one.after_update(update, update)
        one.look(update, update)
    one.finish(6, 6)
    one.leave(6, done=False)
    assert dataflow.released[-1] == released
    assert dataflow.last == [False] * (len(dataflow.released) - 1) + [True]


def test_without_room_it_is_tried_at_every_opportunity(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataflow, done_by = Dataflow(), operations()
    done_by.fail = OSError(28, "No space left on device")
    one = saving(tmp_path, dataflow, done_by)
    one.after_update(2, 2)
    one.look(2, 2)
    one.after_update(3, 3)
    assert caplog.text.count("saving the checkpoint waits for disk space") == 1
    with pytest.raises(NoRoom):
        one.finish(3, 3)
    done_by.fail = None
    one.look(3, 3)
    one.finish(3, 3)
    one.leave(3, done=True)
    assert "there is disk space again: checkpoint of update 3 saved" in caplog.text
    assert dataflow.released[-1] == 3


@pytest.mark.slow
def test_every_flipped_byte_of_the_facts_falls_back_to_the_one_before(tmp_path: Path) -> None:
    checkpoints = make(tmp_path)
    save(checkpoints, operations(), 1)
    facts = save(checkpoints, operations(), 2) / "checkpoint.json"
    whole = facts.read_bytes()
    meant, fallen_back = json.loads(whole), 0
    del meant["xxh3_128"]
    for at in range(len(whole)):
        for bit in (1, 16, 128):
            facts.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            found = list(make(tmp_path).sound())
            assert found in ([1], [1, 2])
            if found == [
                1,
                2,
            ]:  # white space, the name of the digest, or a last digit that changes no number
                means = json.loads(facts.read_bytes().decode(errors="replace"))
                assert {key: means[key] for key in meant} == meant
            fallen_back += found == [1]
    assert fallen_back > len(whole)


def test_the_only_checkpoint_stays_until_the_dataflow_has_flushed_its_journal(
    tmp_path: Path,
) -> None:
    """Power may be lost at any time before; the journal then ends behind the older one."""
    dataflow = Dataflow()
    one = saving(tmp_path, dataflow, operations(), keep=1)
    there: list[set[str]] = []
    dataflow.on_release = lambda: there.append({p.name for p in tmp_path.glob("update-*")})
    one.after_update(2, 2)
    one.after_update(4, 4)  # waits for the first at the latest
    one.after_update(6, 6)
    assert {"update-00000002", "update-00000004"} <= there[1]

    def away() -> None:
        raise DeadlineExceeded("the dataflow", "it does not answer", 1.0)

    dataflow.on_release = away
    one.after_update(8, 8)
    assert (tmp_path / "update-00000004").exists()
    dataflow.on_release = lambda: None
    one.finish(8, 8)
    one.leave(8, done=True)
    assert [p.name for p in tmp_path.glob("update-*")] == ["update-00000008"]
