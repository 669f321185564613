"""Transport ``http`` keeps what every transport promises."""

from __future__ import annotations

from typing import Any

import pytest

from astraflow_testing.conformance.transport import TransportConformance


class TestHttp(TransportConformance):
    @pytest.fixture
    def table(self) -> dict[str, Any]:
        return {"use": "http", "streams": 2}
