"""Transport ``disk`` between processes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.types import Announcement
from astraflow_testing.conformance.transport import ShapedLink
from astraflow_testing.weight_faults import DEADLINE_S, TransportWorld, WeightFaults

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def written(told: Announcement) -> Path:
    """The folder of a version, once all of it is there."""
    folder = Path(told.endpoints[0]) / f"v{told.version}"
    end = time.monotonic() + DEADLINE_S
    while not (folder / "manifest").exists():
        assert time.monotonic() < end, "it was not written in time"
        time.sleep(0.01)
    return folder


class LaggingStore:
    """While it holds, all parts of a version but the first are not there yet, as on a file system that lags."""

    holds = True

    def __init__(self, told: Announcement) -> None:
        self.endpoints = told.endpoints
        self._folder = written(told)
        self._away = self._folder.parent.parent / f"away-{told.version}"
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._held = threading.Event()
        self._over = threading.Event()

    def hold(self, after: int) -> threading.Event:
        """Hide the parts; the event is set when a receiver reads."""
        self._away.mkdir()
        for part in self._folder.glob("data-*"):
            if part.name != "data-00000":
                part.rename(self._away / part.name)
        self._watcher.start()
        return self._held

    def release(self) -> None:
        """Show all parts."""
        for part in self._away.glob("data-*"):
            part.rename(self._folder / part.name)

    def close(self) -> None:
        """End the watch."""
        self._over.set()
        if self._watcher.is_alive():
            self._watcher.join(DEADLINE_S)

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            if any(self._folder.parent.glob("readers/*")):
                self._held.set()


class TestDisk(WeightFaults):
    wired = False
    outlives_its_publisher = True
    stored_by = ("receiver", "publisher")
    waits_for_room = True

    @classmethod
    def table(cls, folder: Path) -> dict[str, Any]:
        return {"use": "disk", "url": str(folder / "store"), "part_mb": 2, "give_up_after_s": 0.5}

    def link(self, told: Announcement) -> ShapedLink:
        return LaggingStore(told)  # type: ignore[return-value]

    def rot(self, world: TransportWorld, told: Announcement, at: int) -> None:
        part = written(told) / "data-00002"
        data = bytearray(part.read_bytes())
        data[at - (4 << 20)] ^= 16
        part.write_bytes(data)

    def cut(self, world: TransportWorld, told: Announcement) -> None:
        part = written(told) / "data-00001"
        part.write_bytes(part.read_bytes()[:-7])
