"""The engine where SGLang is awkward: frozen requests that shall end, servers that were left as they were, requests
that fail within an answer of status 200. Against the stand-in for its protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from astraflow_core.errors import AstraFlowError, PreflightError
from astraflow_core.types import GenerateRequest, Sampling
from astraflow_plugin_sglang.generation import SampledStream
from astraflow_testing.conformance.subject import context, installed

Serving = Callable[..., Any]
LONG, SHORT = Sampling(400, ignore_eos=True), Sampling(3, ignore_eos=True)


def run(
    stand_in: Any, model: Path, scenario: Callable[[Any], Coroutine[Any, Any, None]], **keys: Any
) -> None:
    async def main() -> None:
        (build,) = installed("engine", "sglang", {"url": stand_in.url, **keys}).variants.values()
        engine = build(context("engine", model.parent))
        async with asyncio.timeout(20):
            try:
                await engine.start(model)
                await scenario(engine)
            finally:
                await engine.close()

    asyncio.run(main())


async def nothing(engine: Any) -> None:
    """A scenario that does nothing after the start."""


def request(sampling: Sampling = SHORT, name: str = "r") -> GenerateRequest:
    return GenerateRequest(name, np.array((5, 9, 3), np.int32), sampling)


async def underway(engine: Any, name: str = "r") -> asyncio.Future[Any]:
    before = (await engine.health())["tokens_generated"]
    sent = asyncio.ensure_future(engine.generate(request(LONG, name)))
    while (await engine.health())["tokens_generated"] < before + 5:
        await asyncio.sleep(0.002)
    return sent


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.002)


async def post(url: str, path: str, body: Any = None) -> None:
    """Send a request as another client of the server."""
    async with aiohttp.ClientSession(url) as http, http.post(path, json=body or {}) as response:
        await response.read()


# --- how a server was started ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("disable_overlap_schedule", False, "--disable-overlap-schedule; or set keep = 'retract'"),
        ("disable_radix_cache", False, "--disable-radix-cache; or set keep = 'retract'"),
        ("skip_tokenizer_init", False, "Start it with --skip-tokenizer-init$"),
        ("tokenizer_worker_num", 4, "Start it with --tokenizer-worker-num 1$"),
        ("pp_size", 2, "Start it with --pp-size 1$"),
        ("disable_overlap_schedule", None, "has disable_overlap_schedule = None"),
    ],
)
def test_a_server_that_would_stamp_tokens_wrongly_is_refused(
    serving: Serving, model: Path, field: str, value: object, said: str
) -> None:
    stand_in = serving(model)
    stand_in.info[field] = value
    with pytest.raises(PreflightError, match=said):
        run(stand_in, model, nothing)
    assert stand_in.calls == [], "nothing was changed there"


def test_a_retracting_one_keeps_overlap_and_cache(serving: Serving, model: Path) -> None:
    run(serving(model, ("--skip-tokenizer-init",)), model, nothing, keep="retract")


# --- servers that somebody left ----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["in_place", "retract"])
@pytest.mark.parametrize("session", [False, True])
def test_one_that_was_left_frozen_with_requests_is_taken_over(
    serving: Serving, model: Path, mode: str, session: bool
) -> None:
    stand_in = serving(model)
    stand_in.health_samples = False  # as the README has it started

    async def scenario(engine: Any) -> None:
        sent = [await underway(engine, name) for name in ("a", "b")]
        # As another host that died would leave it.
        await post(stand_in.url, "/pause_generation", {"mode": mode})
        if session:
            await post(stand_in.url, "/begin_weight_update")
        left = stand_in.known
        assert len(left) == 2
        await asyncio.to_thread(run, stand_in, model, successor)
        assert not left & stand_in.known and not stand_in.scheduler.session
        ended = await asyncio.gather(*sent)
        assert [result.finish_reason for result in ended] == ["abort", "abort"]

    async def successor(engine: Any) -> None:
        assert (await engine.generate(request())).versions.tolist() == [0, 0, 0]

    run(stand_in, model, scenario)


def test_one_that_can_never_continue_is_named(serving: Serving, model: Path) -> None:
    stand_in = serving(model)
    stand_in.health_samples = False

    async def scenario(engine: Any) -> None:
        sent = await underway(engine)
        await post(stand_in.url, "/pause_generation", {"mode": "in_place"})
        wedged = asyncio.create_task(post(stand_in.url, "/pause_generation", {"mode": "abort"}))
        await until(lambda: len(stand_in.bodies("/pause_generation")) == 3)
        with pytest.raises(PreflightError, match="permanently; restart it"):
            await asyncio.to_thread(run, stand_in, model, nothing, control_deadline_s=3.0)
        for task in (wedged, sent):
            task.cancel()
        await asyncio.gather(wedged, sent, return_exceptions=True)

    run(stand_in, model, scenario)


# --- pauses and aborts -------------------------------------------------------------------------


def test_a_pause_returns_when_the_scheduler_has_stopped(serving: Serving, model: Path) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        stand_in.scheduler.held = True
        pause = asyncio.create_task(engine.pause("keep"))
        await until(lambda: len(stand_in.bodies("/pause_generation")) == 2)
        await asyncio.wait([pause], timeout=0.05)
        assert not pause.done()
        stand_in.scheduler.held = False
        await pause
        assert stand_in.scheduler.paused

    run(stand_in, model, scenario)


def test_a_frozen_request_that_was_aborted_is_gone_when_the_server_continues(
    serving: Serving, model: Path
) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        sent, other = await underway(engine, "r"), await underway(engine, "other")
        await engine.pause("keep")
        await engine.abort(["r"])
        result = await sent
        assert result.finish_reason == "abort" and len(result.tokens) >= 5
        assert result.versions.tolist() == [0] * len(result.tokens)
        assert len(stand_in.known) == 2, "the server cannot end it now"
        await engine.resume()
        await until(lambda: len(stand_in.known) == 1)
        assert not other.done()
        await engine.abort(["other"])
        await other

    run(stand_in, model, scenario)


def test_a_request_that_never_reached_the_scheduler_can_be_aborted(
    serving: Serving, model: Path
) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        await post(stand_in.url, "/pause_generation", {"mode": "in_place"})
        sent = asyncio.ensure_future(engine.generate(request(LONG)))
        await until(lambda: bool(stand_in.states))
        await engine.abort(["r"])
        result = await sent
        assert (len(result.tokens), result.finish_reason) == (0, "abort")
        await until(lambda: not stand_in.states)
        await post(stand_in.url, "/continue_generation")
        assert len((await engine.generate(request())).tokens) == 3
        assert not stand_in.known, "it would have run to its end"

    run(stand_in, model, scenario)


def test_a_score_does_not_hold_up_a_pause_that_aborts(serving: Serving, model: Path) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        await post(stand_in.url, "/pause_generation", {"mode": "in_place"})
        score = asyncio.ensure_future(engine.score(np.array((5, 9, 3), np.int32)))
        await until(lambda: bool(stand_in.states))
        await engine.pause("abort")
        with pytest.raises(AstraFlowError, match="a score was aborted"):
            await score
        await engine.resume()
        assert (await engine.score(np.array((5, 9, 3), np.int32))).shape == (3,)

    run(stand_in, model, scenario)


# --- failures of one request -------------------------------------------------------------------


def test_a_request_that_is_refused_within_a_stream_fails_alone(
    serving: Serving, model: Path
) -> None:
    stand_in = serving(model)
    stand_in.context = 100

    async def scenario(engine: Any) -> None:
        sent = asyncio.ensure_future(engine.generate(request(Sampling(90), "small")))
        with pytest.raises(AstraFlowError, match=r"refused a request: .*more than 100 tokens"):
            await engine.generate(request(LONG))
        assert (await sent).finish_reason in ("stop", "length")

    run(stand_in, model, scenario)


def test_a_request_that_fails_is_no_partial_result(serving: Serving, model: Path) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        sent = await underway(engine)
        (rid,) = stand_in.running
        stand_in.call(stand_in.scheduler.fail, rid, 500, "no memory for it")
        with pytest.raises(AstraFlowError, match="no memory for it"):
            await sent
        assert len((await engine.generate(request())).tokens) == 3

    run(stand_in, model, scenario)


# --- versions of an answer that is left --------------------------------------------------------


def event(versions: list[int], served: int, last: bool = False) -> bytes:
    """After tokens of ``versions`` were sampled; the server's own side serves ``served``."""
    meta: dict[str, Any] = {
        "completion_tokens": len(versions),
        "finish_reason": {"type": "abort", "message": "", "status_code": None} if last else None,
        "output_token_logprobs": [[-1.0, 3 + n, None] for n in range(len(versions))],
        "weight_version": str(served),
    }
    if last:
        meta["weight_versions"] = [
            {
                "version": str(v),
                "start": versions.index(v),
                "end": versions.index(v) + versions.count(v),
            }
            for v in sorted(set(versions))
        ]
    return json.dumps({"output_ids": [], "meta_info": meta}).encode()


@pytest.mark.parametrize(
    ("counts", "sure"),
    [
        ([1, 2, 3, 4], [1, 1, 1, 2]),  # one by one: each event has the version of its token
        ([3, 4], [1, 1, 1, 2]),  # several at once, of the version that was served when it was sent
        ([1, 4], [1]),  # several at once across a change: their versions are unknown
        ([4], []),
    ],
)
def test_tokens_of_an_unknown_version_are_left_out(counts: list[int], sure: list[int]) -> None:
    versions = [1, 1, 1, 2]
    sampled = SampledStream(request(LONG), (1,), since=1)
    for count in counts:
        sampled.take(event(versions[:count], versions[count - 1]))
    left = sampled.partial()
    assert left.versions.tolist() == sure and len(left.tokens) == len(left.logprobs) == len(sure)
    assert left.finish_reason == "abort"
    sampled.take(event(versions, 2, last=True))
    assert sampled.result().versions.tolist() == versions


def test_through_a_router_only_the_last_token_of_the_first_event_is_sure() -> None:
    sampled = SampledStream(request(LONG), (1,), since=None)
    sampled.take(event([1], 1))
    assert sampled.partial().versions.tolist() == [1]
    collapsed = SampledStream(request(LONG), (1,), since=None)
    collapsed.take(event([1, 2], 2))
    assert collapsed.partial().versions.tolist() == []
