from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from astraflow_core.errors import NoRoom
from astraflow_runtime.trainer.checkpoints import final_models
from astraflow_runtime.trainer.checkpoints.final_models import leave_folder, retry_until

pytestmark = pytest.mark.timeout(60)


def full(folder: Path) -> None:
    (folder / "weights").write_text("hal")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def whole(folder: Path) -> None:
    (folder / "config").write_text("{}")
    (folder / "weights").write_text("half and half")


def other(folder: Path) -> None:
    (folder / "other").write_text("x")


def broken(folder: Path) -> None:
    raise ZeroDivisionError


def test_a_folder_is_whole_or_what_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "solver"
    with pytest.raises(NoRoom, match=r"solver: .*No space left"):
        leave_folder(folder, full)
    assert list(folder.parent.iterdir()) == []
    leave_folder(folder, whole)
    with pytest.raises(NoRoom):
        leave_folder(folder, full)
    with pytest.raises(ZeroDivisionError):
        leave_folder(folder, broken)
    assert sorted(p.name for p in folder.parent.iterdir()) == ["solver"]
    assert (folder / "weights").read_text() == "half and half"
    leave_folder(folder, other)
    assert [p.name for p in folder.iterdir()] == ["other"]


def test_room_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(final_models, "LOOK_S", 0.0)
    tried = []

    def write() -> None:
        tried.append(1)
        if len(tried) < 4:
            raise NoRoom("models/solver: full")

    retry_until(write, give_up_after_s=60)
    assert len(tried) == 4
    assert caplog.text.count("models/solver: full; retrying for 60 s; free some disk space") == 1
    assert "there is disk space again" in caplog.text
    del tried[:]
    with pytest.raises(NoRoom, match="full"):
        retry_until(write, give_up_after_s=-1)
    assert len(tried) == 1
