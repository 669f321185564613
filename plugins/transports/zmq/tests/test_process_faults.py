"""Transport ``zmq`` between processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.types import Announcement
from astraflow_testing.conformance.transport import EncryptedLink, ShapedLink
from astraflow_testing.weight_faults import HELD_AT, WeightFaults

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class TestZmq(WeightFaults):
    leased_at = HELD_AT  # a handshake comes first, and an answer is queued at once

    @classmethod
    def table(cls, folder: Path) -> dict[str, Any]:
        return {"use": "zmq"}

    def link(self, told: Announcement) -> ShapedLink:
        return EncryptedLink(told.endpoints)
