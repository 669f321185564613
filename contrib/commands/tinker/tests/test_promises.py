"""Requests of a model by their numbers, and results that wait to be fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from astraflow_contrib_tinker.wire.results import GradientResult, Result
from astraflow_contrib_tinker.work.futures import MOST_PENDING_BYTES, FailedRequest, Promises, Work
from astraflow_contrib_tinker.work.ordering import MOST_AHEAD, Ordered
from astraflow_core.errors import Refused

FETCH_S = 5.0


def work(done: list[int], number: int, fails: Exception | None = None) -> Work:
    async def run() -> Result:
        await asyncio.sleep(0)
        if fails is not None:
            raise fails
        done.append(number)
        return {"number": number}

    return run


async def outcomes(promises: Promises, ids: list[str]) -> list[object]:
    return [(await promises.fetch(id, FETCH_S)).outcome for id in ids]


def test_requests_are_worked_on_by_number_and_once() -> None:
    async def scenario() -> None:
        promises, done = Promises(), list[int]()
        order = Ordered(promises, "s")
        order.start()
        made = {n: order.put(n, b"%d" % n, work(done, n)) for n in (3, 2)}
        assert (await promises.fetch(made[2].id, 0.01)).queue_state == "paused_capacity"
        assert order.put(3, b"3", work(done, 3)) is made[3]
        made[1] = order.put(1, b"1", work(done, 1))
        assert await outcomes(promises, [made[n].id for n in (1, 2, 3)]) == [
            {"number": 1},
            {"number": 2},
            {"number": 3},
        ]
        assert order.put(2, b"2", work(done, 2)) is made[2]
        assert done == [1, 2, 3]
        with pytest.raises(Refused, match="another request"):
            order.put(2, b"other", work(done, 2))
        with pytest.raises(Refused, match="numbered from 1"):
            order.put(0, b"", work(done, 0))
        with pytest.raises(Refused, match="far ahead") as far:
            order.put(4 + MOST_AHEAD, b"", work(done, 0))
        assert far.value.status == 429

    asyncio.run(scenario())


def test_a_number_that_is_over_and_forgotten_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astraflow_contrib_tinker.work.ordering.MOST_REMEMBERED", 2)

    async def scenario() -> None:
        promises, done = Promises(), list[int]()
        order = Ordered(promises, "s")
        order.start()
        made = [order.put(n, b"", work(done, n)) for n in (1, 2, 3, 4)]
        await promises.fetch(made[-1].id, FETCH_S)
        with pytest.raises(
            Refused, match="seq_id 1 is stale: the next request of this model has 5"
        ):
            order.put(1, b"", work(done, 1))

    asyncio.run(scenario())


def test_requests_behind_one_that_never_comes_fail() -> None:
    async def scenario() -> None:
        promises, done = Promises(), list[int]()
        order = Ordered(promises, "s", gap_s=0.05)
        order.start()
        late = order.put(2, b"", work(done, 2))
        (failure,) = await outcomes(promises, [late.id])
        assert (
            isinstance(failure, FailedRequest)
            and "request 1 of this model did not come" in failure.error
        )
        after = order.put(3, b"", work(done, 3))
        assert await outcomes(promises, [after.id]) == [{"number": 3}] and done == [3]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("error", "category"),
    [(Refused(400, "wrong"), "user"), (ValueError("no"), "user"), (ZeroDivisionError(), "server")],
)
def test_a_failure_says_whose_it_is_and_the_next_request_goes_on(
    error: Exception, category: str
) -> None:
    async def scenario() -> None:
        promises, done = Promises(), list[int]()
        order = Ordered(promises, "s")
        order.start()
        made = [order.put(1, b"", work(done, 1, error)), order.put(2, b"", work(done, 2))]
        failure, result = await outcomes(promises, [each.id for each in made])
        assert isinstance(failure, FailedRequest) and failure.category == category
        assert result == {"number": 2}

    asyncio.run(scenario())


def test_results_that_nobody_fetches_are_bounded() -> None:
    async def large() -> Result:
        return GradientResult([np.zeros(1 << 18, np.float32)], {})

    async def scenario() -> None:
        promises = Promises(most_pending=100, most_bytes=4 << 20)
        ids, first = [], promises.make("s")
        promises.start(first, large)
        for _ in range(1000):
            promise = promises.make("s")
            promises.start(promise, large)
            ids.append(promise.id)
            await promises.fetch(promise.id, FETCH_S)
        assert promises.held_bytes <= 4 << 20
        assert (await promises.fetch(ids[-1], 0)).outcome is not None
        assert first.outcome is None  # the promise itself keeps no result
        with pytest.raises(Refused) as dropped:
            await promises.fetch(ids[0], 0)
        assert dropped.value.status == 410
        for foreign in ("x-1", "", f"{ids[0].partition('-')[0]}-99999", "a" * 5000):
            with pytest.raises(Refused) as unknown:
                await promises.fetch(foreign, 0)
            assert unknown.value.status == 404

    asyncio.run(scenario())


def test_bytes_of_requests_that_wait_are_bounded() -> None:
    promises = Promises()
    first = promises.make("s", MOST_PENDING_BYTES)
    with pytest.raises(Refused, match="1 requests of 512 MiB wait already"):
        promises.make("s", 1)
    promises.finish(first, FailedRequest("", "user"))
    promises.make("s", MOST_PENDING_BYTES)


def test_too_many_waiting_requests_are_refused_with_429() -> None:
    async def scenario() -> None:
        promises = Promises(most_pending=2)
        never: Callable[[], asyncio.Future[Result]] = asyncio.get_running_loop().create_future

        async def waits() -> Result:
            return await never()

        made = [promises.make("s") for _ in range(2)]
        for promise in made:
            promises.start(promise, waits)
        with pytest.raises(Refused) as slow:
            promises.make("s")
        assert slow.value.status == 429
        await asyncio.sleep(0)
        promises.forget("s")
        assert promises.waiting == promises.held_bytes == 0
        with pytest.raises(Refused):
            await promises.fetch(made[0].id, 0)

    asyncio.run(scenario())
