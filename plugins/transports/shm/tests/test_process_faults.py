"""Transport ``shm`` between processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.types import Announcement
from astraflow_testing.conformance.transport import ShapedLink
from astraflow_testing.weight_faults import TransportWorld, WeightFaults

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class NoLink:
    """Both sides map the same memory, without a link between them."""

    holds = False

    def __init__(self, endpoints: tuple[str, ...]) -> None:
        self.endpoints = endpoints

    def release(self) -> None:
        """Nothing was held."""

    def close(self) -> None:
        """Nothing was opened."""


class TestShm(WeightFaults):
    wired = guarded = False
    stored_by = ("publisher",)

    @classmethod
    def table(cls, folder: Path) -> dict[str, Any]:
        return {"use": "shm", "directory": str(folder)}

    def link(self, told: Announcement) -> ShapedLink:
        return NoLink(told.endpoints)  # type: ignore[return-value]

    def cut(self, world: TransportWorld, told: Announcement) -> None:
        os.truncate(self.file_of(world, told), 3 << 20)

    def file_of(self, world: TransportWorld, told: Announcement) -> Path:
        (path,) = world.folder.rglob(f"astraflow-weights-*/*-{told.version}.safetensors")
        return path

    def rot(self, world: TransportWorld, told: Announcement, at: int) -> None:
        with self.file_of(world, told).open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 16]))
