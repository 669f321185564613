"""An engine and a transport that block whoever calls them until a file is there."""

from __future__ import annotations

import time
from pathlib import Path

from fake_parts import FakeEngine, FakeTransport, TransportConfig

from astraflow_core.config.models import ConfigModel
from astraflow_core.types import Announcement, WeightSource


def block(folder: Path, what: str) -> None:
    """Say that ``what`` has begun, and let nothing else happen in this thread until it may end."""
    (folder / f"{what}-begun").touch()
    while not (folder / f"{what}-may-end").exists():
        time.sleep(0.01)


class BlockingConfig(ConfigModel):
    folder: Path
    context: int = 64
    start_s: float = 0.0
    block_s: float = 0.0
    token_s: float = 0.0
    load_s: float = 0.0
    fail: str = ""
    refuse_version: int = -1


class BlockingEngine(FakeEngine):
    """Its loads block the event loop of its host, as a backend's do."""

    Config = BlockingConfig

    async def load_weights(self, source: WeightSource) -> None:
        block(self.config.folder, f"load-{source.version}")
        await super().load_weights(source)


class BlockingTransportConfig(TransportConfig):
    folder: Path


class BlockingTransport(FakeTransport):
    """Its fetches block the thread that they are made in."""

    Config = BlockingTransportConfig

    def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
        block(self.config.folder, f"fetch-{announcement.version}")
        return super().fetch(announcement, deadline_s)
