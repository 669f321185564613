"""Transport ``shm`` keeps what every transport promises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from astraflow_core.protocols.transport import Publisher
from astraflow_testing.conformance.transport import ShapedLink, TransportConformance


class MemoryLink:
    """Flips published bytes where they lie; nothing moves, so nothing can be held."""

    holds = False

    def __init__(self, publisher: Publisher) -> None:
        self.endpoints = publisher.endpoints
        self.flipped = 0

    def flip(self, marker: bytes, times: int) -> None:
        for path in Path(urlsplit(self.endpoints[0]).path).glob("*.safetensors"):
            with path.open("r+b") as file:
                position = file.read().find(marker)
                if position >= 0:
                    file.seek(position)
                    file.write(bytes([marker[0] ^ 1]))
                    self.flipped += 1

    def hold(self, after: int) -> threading.Event:
        raise AssertionError("this link cannot hold")

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass


class TestShm(TransportConformance):
    @pytest.fixture
    def table(self) -> dict[str, Any]:
        return {"use": "shm"}

    @pytest.fixture
    def link(self) -> Iterator[Callable[[Publisher], ShapedLink]]:
        with ExitStack() as stack:
            yield lambda publisher: stack.enter_context(closing(MemoryLink(publisher)))
