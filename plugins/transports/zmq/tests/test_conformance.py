"""Transport ``zmq`` keeps what every transport promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from astraflow_core.protocols.transport import Publisher
from astraflow_core.testing.conformance.transport import Link, TcpLink, TransportConformance

BULK = 1 << 12
"""What passes in pieces above this is blocks, not a handshake."""


class CipherLink(TcpLink):
    """What passes is encrypted, so a marker is never seen: any byte of a block is changed instead."""

    def _alter(self, tail: bytes, data: bytes) -> tuple[bytes, bytes]:
        with self._lock:
            if self._times and len(data) > BULK:
                self._times -= 1
                self._flipped += 1
                data = data[:100] + bytes([data[100] ^ 1]) + data[101:]
        return data, b""


class TestZmq(TransportConformance):
    @pytest.fixture
    def table(self) -> dict[str, Any]:
        return {"use": "zmq"}

    @pytest.fixture
    def link(self) -> Iterator[Callable[[Publisher], Link]]:
        with ExitStack() as stack:
            yield lambda publisher: stack.enter_context(closing(CipherLink(publisher.endpoints)))
