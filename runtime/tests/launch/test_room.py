"""How a launcher sees a full disk, and files that earlier processes have left."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astraflow_runtime.launch.watch import full_disk
from astraflow_runtime.launch.watch.full_disk import RoomWatch
from astraflow_runtime.launch.watch.supervise import Supervisor
from astraflow_wire.status import Status


class Told:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def watching(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    view: Any,
    now: list[float],
    reason: list[str],
) -> RoomWatch:
    """A watch with the test's clock; ``reason``: why there is no disk space."""
    monkeypatch.setattr(full_disk, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(full_disk, "lacking", lambda folder: reason[0])
    return RoomWatch(folder, view)


def test_a_full_disk_is_reported_once_and_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, now, reason = Told(), [0.0], [""]
    watch = watching(tmp_path, monkeypatch, view, now, reason)
    assert not watch.lacks()
    reason[0] = "No space left on device"
    assert not watch.lacks()  # it was looked at in this second
    for _ in range(5):
        now[0] += 1
        assert watch.lacks()
    for _ in range(3):  # a draft that is given up frees some room for a moment
        reason[0] = ""
        now[0] += 1
        assert watch.lacks()
        reason[0] = "No space left on device"
        now[0] += 1
        assert watch.lacks()
    assert len(view.said) == 1
    reason[0] = ""
    for _ in range(10):
        now[0] += 1
        assert watch.lacks()
    now[0] += 1
    assert not watch.lacks()
    first, last = view.said
    assert first.startswith("the disk is full: No space left on device. Nothing is lost")
    assert last == "there is disk space again after 11 s"
    reason[0] = "Disk quota exceeded"
    now[0] += 1
    assert watch.lacks()
    now[0] += 86400
    assert not watch.lacks()  # the wait has a limit


def test_a_signal_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disk, "lacking", lambda folder: "No space left on device")
    interrupts: Any = SimpleNamespace(number=None)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            interrupts.number = 2

    interrupts.sleep = sleep
    view: Any = Told()
    RoomWatch(tmp_path, view).wait(interrupts)
    assert len(slept) == 3


def test_moments_of_room_do_not_lengthen_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, now, reason = Told(), [0.0], ["No space left on device"]
    watch = watching(tmp_path, monkeypatch, view, now, reason)
    assert watch.lacks()
    for reason[0] in ("", "No space left on device"):
        now[0] += 43200
        lacks = watch.lacks()
    assert not lacks
    assert len(view.said) == 1


def test_the_wait_ends_at_the_first_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = ["No space left on device", "No space left on device", ""]
    monkeypatch.setattr(full_disk, "LOOK_S", 0.0)
    monkeypatch.setattr(full_disk, "lacking", lambda folder: reasons.pop(0))
    interrupts: Any = SimpleNamespace(number=None, sleep=lambda seconds: None)
    view: Any = Told()
    RoomWatch(tmp_path, view).wait(interrupts)
    assert reasons == []
    assert view.said[-1].startswith("there is disk space again after")


def test_the_last_status_of_an_earlier_dataflow_is_not_believed(tmp_path: Path) -> None:
    """It ended after the run was restarted, and left its file where the new one would leave its own."""
    supervisor: Any = SimpleNamespace(directory=tmp_path, status=Status())
    status = {"pid": 11, "state": "failed", "reason": "the launcher is lost"}
    (tmp_path / "status.json").write_text(json.dumps(status))
    Supervisor._read_last_status(supervisor)
    (tmp_path / "dataflow.json").write_text(json.dumps({"url": "http://h:1", "pid": 12}))
    Supervisor._read_last_status(supervisor)
    assert supervisor.status == Status()
    (tmp_path / "status.json").write_text(json.dumps(status | {"pid": 12}))
    Supervisor._read_last_status(supervisor)
    assert supervisor.status.state == "failed"
