"""Transport ``delta`` keeps what every transport promises, with either kernel."""

from __future__ import annotations

from typing import Any

import pytest

from astraflow_testing.conformance.transport import TransportConformance


class TestNumpy(TransportConformance):
    @pytest.fixture
    def table(self) -> dict[str, Any]:
        return {"use": "delta", "streams": 2, "kernel": "numpy"}


@pytest.mark.timeout(300)  # it compiles
@pytest.mark.slow
class TestNumba(TransportConformance):
    @pytest.fixture
    def table(self) -> dict[str, Any]:
        return {"use": "delta", "streams": 2, "kernel": "numba"}
