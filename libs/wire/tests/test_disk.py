"""A full disk is distinguished from other errors, and waited for; with file systems that are really full."""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from astraflow_core.errors import NoRoom
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.journal.steplog import StepLog
from astraflow_runtime.telemetry.logs import KeepingHandler
from astraflow_runtime.trainer.checkpoints.final_models import leave_folder
from astraflow_runtime.trainer.checkpoints.store import Checkpoints
from astraflow_testing.small_disk import CannotMount, SmallDisk, small_disk
from astraflow_wire.host import disk
from astraflow_wire.host.disk import is_full, lacking, replace_file, room_for, says_full, when_room
from astraflow_wire.host.private_folder import PrivateFolder

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(params=["tmpfs", "ext4"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(tmp_path, request.param, 2 if request.param == "tmpfs" else 4) as made:
            yield made
    except CannotMount as error:
        pytest.skip(str(error))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "LOOK_S", 0.0)


def failing(times: int, error: Exception = FULL) -> Callable[[], str]:
    tried: list[int] = []

    def write() -> str:
        tried.append(1)
        if len(tried) <= times:
            raise error
        return f"after {len(tried)}"

    return write


def test_what_is_a_full_disk(tmp_path: Path) -> None:
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE):
        assert says_full(OSError(code, "x"))
        assert says_full(RuntimeError(f"a library: {os.strerror(code)} (os error {code})"))
    assert says_full(NoRoom("models"))
    assert not says_full(OSError(errno.EACCES, "x"))
    assert not is_full(OSError(errno.EACCES, "x"), tmp_path / "not" / "there")
    assert not is_full(ValueError("x"), tmp_path / "not" / "there")


def test_disk_space_is_waited_for_and_reported_once(
    tmp_path: Path, at_once: None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "folder" / "file"
    assert when_room(failing(3), path, needs=12_300_000) == "after 4"
    assert [record.message.split(": ")[0] for record in caplog.records] == [
        f"{path} waits for disk space",
        "there is disk space again",
    ]
    assert "about 12.3 MB are needed, " in caplog.text
    told: list[str] = []
    assert when_room(failing(0), path, report=told.append) == "after 1"
    assert told == []
    with pytest.raises(
        NoRoom, match=r"file: .*No space left on device; there was no disk space for"
    ):
        when_room(failing(9), path, longest_s=0.0)
    with pytest.raises(PermissionError):
        when_room(failing(9, PermissionError(errno.EACCES, "x")), path)


def test_an_event_loop_continues_while_it_waits(tmp_path: Path, at_once: None) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def wait() -> str:
        task = asyncio.create_task(other())
        try:
            return await room_for(failing(5), tmp_path / "f")
        finally:
            task.cancel()

    assert asyncio.run(wait()) == "after 6"
    assert turns > 5


def test_files_on_a_really_full_disk(small: SmallDisk, at_once: None) -> None:
    """Nothing is left half-written, and everything continues when there is room."""
    old = small.path / "old"
    replace_file(old, "as it was")
    assert lacking(small.path) == ""
    small.fill()
    assert "No space left on device" in lacking(small.path / "not" / "there")
    for write in (
        lambda: replace_file(old, "x" * 5000),
        lambda: replace_file(small.path / "new", b"x" * 5000),
    ):
        with pytest.raises(OSError, match="No space left"):
            write()
    assert old.read_text() == "as it was"
    assert {p.name for p in small.path.iterdir()} <= {"old", "filler", "lost+found"}
    waited: list[str] = []

    def report(said: str) -> None:
        waited.append(said)
        if "waits for disk space" in said:
            small.free()

    when_room(lambda: replace_file(old, "x" * 5000), old, report=report)
    assert old.stat().st_size == 5000
    assert len(waited) == 2


class Weights:
    """Saves a quarter of a MiB."""

    def save(self, directory: Path) -> None:
        (directory / "weights").write_bytes(bytes(1 << 18))

    def finish_save(self, wait: bool) -> bool:
        return True


def test_checkpoints_models_journals_and_folders_on_a_really_full_disk(
    small: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders cannot be made either: each reports that there is no space, and is made once there is."""
    home, weights = small.path / "run", Weights()
    # The module's own: threads of other tests sleep by the same function.
    clock = SimpleNamespace(sleep=lambda _: small.free(), monotonic=time.monotonic)
    monkeypatch.setattr(disk, "time", clock)
    checkpoints = Checkpoints(home / "checkpoints", "p", keep=1)
    small.fill()
    with pytest.raises(NoRoom):
        checkpoints.begin(weights, 1, version=1)  # type: ignore[arg-type]
    with pytest.raises(NoRoom):
        leave_folder(home / "models" / "p", weights.save)
    with pytest.raises(NoRoom):
        Journal(home / "journal", lambda: 0.0)
    folder = PrivateFolder(home / "private", "f-")
    small.fill()
    log = when_room(lambda: StepLog(small.path / "run" / "metrics.jsonl"), home)
    log.write({"step": 1})
    log.close()
    if (small.path / "filler").exists():
        small.free()
    checkpoints.begin(weights, 1, version=1)  # type: ignore[arg-type]
    assert checkpoints.advance(weights, wait=True) is not None  # type: ignore[arg-type]
    leave_folder(home / "models" / "p", weights.save)
    assert [p.name for p in (home / "models").iterdir()] == ["p"]
    folder.close()


def test_lines_that_find_no_room_are_written_later() -> None:
    class Full(io.StringIO):
        full = False

        def write(self, text: str) -> int:
            if self.full:
                super().write(text[:9])  # the part for which there was space
                raise FULL
            return super().write(text)

    stream = Full()
    log = logging.getLogger("a full disk")
    log.propagate = False
    log.addHandler(KeepingHandler(stream))
    log.warning("first line")
    stream.full = True
    log.warning("second line")
    log.warning("third line")
    stream.full = False
    log.warning("fourth line")
    lines = stream.getvalue().splitlines()
    assert [
        line for line in lines if line in ("first line", "second line", "third line", "fourth line")
    ] == [
        "first line",
        "second line",
        "third line",
        "fourth line",
    ]
