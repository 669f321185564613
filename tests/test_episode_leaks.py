"""Episodes of which some crash, hang, leak and lie leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest
from bench.episode_leaks import leaks


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_faulty_episodes_leave_no_process_handle_or_file() -> None:
    found = asyncio.run(leaks(200, seed=1))
    assert found["faulty"] >= 10 and found["workers_replaced"] >= 5 and found["kept_files"] > 0
    left = ("wrong", "left_processes", "left_handles", "left_files")
    assert {name: found[name] for name in left} == dict.fromkeys(left, 0.0)
