"""Figures of a RaaS come from code of the run: implausible ones are not forwarded by the host."""

from __future__ import annotations

import msgspec
import pytest

from astraflow_contrib_pool.messages import RaasFigures, SeatReport
from astraflow_wire.messages import decode, encode


@pytest.mark.parametrize("said", [-1.0, 1e16, float("inf"), float("nan"), 12.5])
def test_a_counter_that_is_none_is_not_reported(said: float) -> None:
    status = {
        "ready": True,
        "episodes_running": 3,
        "metrics": {"tokens_generated": said},
        "more": 1,
    }
    figures = msgspec.convert(status, RaasFigures)
    report = SeatReport(
        run="ada/r",
        raas="raas-0",
        start=1,
        state="ready",
        pid=4_194_303,
        tokens=figures.metric("tokens_generated"),
        episodes=figures.metric("episodes"),
    )
    assert decode(encode(report), SeatReport).tokens == (12.5 if said == 12.5 else 0.0)


@pytest.mark.parametrize(
    "status", [{}, [], {"ready": True, "episodes_running": -1, "metrics": {}}, {"ready": 1, "episodes_running": 1, "metrics": {"a": "b"}}]
)  # fmt: skip
def test_a_malformed_status_is_none(status: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(status, RaasFigures)
