"""Transport ``zmq`` between processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.testing.conformance.transport import Link, TcpLink
from astraflow_core.testing.weight_faults import HELD_AT, WeightFaults
from astraflow_core.types import Announcement

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

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


class TestZmq(WeightFaults):
    leased_at = HELD_AT  # a handshake comes first, and an answer is queued at once

    @classmethod
    def table(cls, folder: Path) -> dict[str, Any]:
        return {"use": "zmq"}

    def link(self, told: Announcement) -> Link:
        return CipherLink(told.endpoints)
