"""Who is at the server, who waits, and in which order they get in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from astraflow_core.types import GenerateRequest, Sampling
from astraflow_serving.desk import Flight, RequestQueue


def request(name: str, priority: int = 0) -> GenerateRequest:
    return GenerateRequest(name, np.ones(1, dtype=np.int32), Sampling(1), priority=priority)


def on_a_loop(
    scenario: Callable[[RequestQueue], Coroutine[Any, Any, None]], capacity: int = 2
) -> None:
    async def run() -> None:
        async with asyncio.timeout(5):
            await scenario(RequestQueue(capacity))

    asyncio.run(run())


def names(desk: RequestQueue) -> list[str]:
    return [flight.request.id for flight in desk.running]


def test_lets_in_by_priority_then_by_arrival_and_no_more_than_there_is_room_for() -> None:
    async def scenario(desk: RequestQueue) -> None:
        flights = {
            name: desk.enter(request(name, priority), name)
            for name, priority in (("a", 0), ("b", 0), ("c", 5), ("d", 0), ("e", -1))
        }
        assert (names(desk), desk.waiting) == (["a", "b"], 3)
        for leaver, now in (("b", ["a", "e"]), ("a", ["e", "d"]), ("e", ["d", "c"]), ("c", ["d"])):
            desk.leave(flights[leaver])
            assert names(desk) == now
        assert flights["d"].admission.result() and desk.waiting == 0

    on_a_loop(scenario)


def test_a_closed_queue_admits_no_request_and_running_ones_may_leave() -> None:
    async def scenario(desk: RequestQueue) -> None:
        runs = desk.enter(request("runs"), "1")
        desk.close()
        waits = desk.enter(request("waits"), "2")
        drained = asyncio.ensure_future(desk.drained())
        await asyncio.sleep(0)
        assert not waits.admission.done() and not drained.done()
        desk.leave(runs)
        await drained
        assert desk.waiting == 1
        desk.open()
        assert await waits.admission

    on_a_loop(scenario)


def test_opening_ends_the_wait_for_a_drain() -> None:
    async def scenario(desk: RequestQueue) -> None:
        desk.enter(request("runs"), "1")
        desk.close()
        drained = asyncio.ensure_future(desk.drained())
        await asyncio.sleep(0)
        desk.open()
        await drained

    on_a_loop(scenario)


def test_who_waits_is_ended_at_once_who_runs_is_named() -> None:
    async def scenario(desk: RequestQueue) -> None:
        first, second = desk.enter(request("a"), "1"), desk.enter(request("b"), "2")
        held, kept = desk.enter(request("c"), "3"), desk.enter(request("d"), "4")
        assert desk.named(["a", "c", "unheard of"]) == [first]
        assert await held.admission is False
        desk.leave(held)
        assert desk.waiting == 1
        desk.leave(second)
        assert await kept.admission is True

    on_a_loop(scenario)


def test_a_caller_that_is_cancelled_while_it_waits_takes_no_place() -> None:
    async def scenario(desk: RequestQueue) -> None:
        first: Flight = desk.enter(request("a"), "1")
        gone, waits = desk.enter(request("b"), "2"), desk.enter(request("c"), "3")
        desk.leave(gone)
        assert desk.waiting == 1
        desk.leave(first)
        assert names(desk) == ["c"] and waits.admission.result()

    on_a_loop(scenario, capacity=1)


def test_failing_ends_all_that_wait() -> None:
    async def scenario(desk: RequestQueue) -> None:
        desk.close()
        waits = desk.enter(request("a"), "1")
        desk.fail(RuntimeError("closed"))
        with pytest.raises(RuntimeError, match="closed"):
            await waits.admission
        assert desk.waiting == 0

    on_a_loop(scenario)


def test_busy_is_when_something_runs_and_nothing_is_paused() -> None:
    async def scenario(desk: RequestQueue) -> None:
        await asyncio.sleep(0.02)
        assert desk.busy_s == 0
        flight = desk.enter(request("a"), "1")
        await asyncio.sleep(0.02)
        desk.close()
        busy = desk.busy_s
        assert busy >= 0.02
        await asyncio.sleep(0.02)
        assert desk.busy_s == busy
        desk.open()
        await asyncio.sleep(0.01)
        desk.leave(flight)
        assert busy < desk.busy_s == desk.busy_s

    on_a_loop(scenario)
