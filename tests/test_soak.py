"""`soak` tells a dataflow that leaks from one that does not."""

from __future__ import annotations

import asyncio

import pytest
from bench.support.parts import HOARDED_KB
from bench.support.soaking import LENGTH, soaked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
GROUPS, SECONDS = 600, 8.0


def test_a_leak_is_found_and_nothing_else_is_taken_for_one() -> None:
    sound = asyncio.run(soaked(GROUPS, LENGTH, SECONDS))
    assert sound["lost"] == sound["doubled"] == 0
    leak = [{"use": "bench.support.parts:Hoarder"}]
    leaking = asyncio.run(soaked(GROUPS, LENGTH, SECONDS, leak))
    assert leaking["growth_kb_per_1000"] == pytest.approx(1000 * HOARDED_KB, rel=0.3)
    assert sound["growth_kb_per_1000"] < 1000 * HOARDED_KB / 4  # the first groups are a warm-up
