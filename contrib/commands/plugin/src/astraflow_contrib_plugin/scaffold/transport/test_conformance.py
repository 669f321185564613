"""``sample_thing`` keeps what every transport promises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.protocols.transport import Publisher
from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.transport import ShapedLink, TransportConformance


class FileLink:
    """Changes published bytes in their file. A fetch cannot be stalled."""

    holds = False

    def __init__(self, publisher: Publisher) -> None:
        self.endpoints = publisher.endpoints
        self.flipped = 0

    def flip(self, marker: bytes, times: int) -> None:
        for file in Path(self.endpoints[0]).glob("*.data"):
            data = file.read_bytes()
            if marker in data:
                file.write_bytes(data.replace(marker, bytes([marker[0] ^ 1]) + marker[1:], 1))
                self.flipped += 1

    def hold(self, after: int) -> threading.Event:
        raise AssertionError("this link cannot hold")

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sample_thing.manifest"


class TestSampleThing(TransportConformance):
    @pytest.fixture
    def table(self, tmp_path: Path) -> dict[str, Any]:
        return {"use": "sample_thing", "path": str(tmp_path / "weights")}

    @pytest.fixture
    def link(self) -> Iterator[Callable[[Publisher], ShapedLink]]:
        yield FileLink
