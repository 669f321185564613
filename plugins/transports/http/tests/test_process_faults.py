"""Transport ``http`` between processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.weight_faults import WeightFaults

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class TestHttp(WeightFaults):
    @classmethod
    def table(cls, folder: Path) -> dict[str, Any]:
        return {"use": "http"}
