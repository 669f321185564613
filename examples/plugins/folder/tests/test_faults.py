"""``folder`` between processes that are killed, run out of room, or find damaged files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.types import Announcement
from astraflow_testing.conformance.transport import ShapedLink
from astraflow_testing.weight_faults import TransportWorld, WeightFaults

pytestmark = [pytest.mark.timeout(300)]


class NoLink:
    """Nothing stands between the processes."""

    holds = False

    def __init__(self, endpoints: tuple[str, ...]) -> None:
        self.endpoints = endpoints

    def close(self) -> None:
        pass

    release = close


class TestFolderFaults(WeightFaults):
    wired = guarded = False
    stored_by = ("publisher", "receiver")

    @classmethod
    def table(cls, folder: Path) -> dict[str, Any]:
        return {"use": "folder", "path": str(folder / "weights")}

    def link(self, told: Announcement) -> ShapedLink:
        return NoLink(told.endpoints)  # type: ignore[return-value]

    def rot(self, world: TransportWorld, told: Announcement, at: int) -> None:
        file = Path(told.endpoints[0]) / f"{told.version}.data"
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        file.write_bytes(data)

    def cut(self, world: TransportWorld, told: Announcement) -> None:
        os.truncate(Path(told.endpoints[0]) / f"{told.version}.data", 3 << 20)
