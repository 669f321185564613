"""The stand-in is as awkward as the sources say that the server is: one test for each row of ``sglang_behaviours``."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sglang_behaviours import BEHAVIOURS, Cite
from sglang_scheduler import Scheduler
from sglang_stand_in import SGLangStandIn
from sglang_wire import UPDATE, Wire, meta, request, run, until

from astraflow_tiny_model.folder import write_tiny_model

Serving = Callable[..., SGLangStandIn]
SOURCES = os.environ.get("SGLANG_SOURCES")
OVERLAP = ("--skip-tokenizer-init", "--disable-radix-cache")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "other", hidden=32, init_std=0.3, context=512, seed=1)


def test_each_behaviour_has_a_test_and_each_test_a_behaviour() -> None:
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert tests == {
        *BEHAVIOURS,
        "each_behaviour_has_a_test_and_each_test_a_behaviour",
        "the_sources_show_it",
    }


@pytest.mark.skipif(SOURCES is None, reason="SGLANG_SOURCES names no unpacked wheel")
def test_the_sources_show_it() -> None:
    def text(where: Cite) -> str:
        lines = (
            (Path(SOURCES or "") / "sglang" / where.file).read_text(encoding="utf-8").splitlines()
        )
        return "\n".join(lines[where.first - 1 : where.last])

    missing = [
        (name, where, word)
        for name, (_, cites) in BEHAVIOURS.items()
        for where in cites
        for word in where.words
        if word not in text(where)
    ]
    assert not missing


# --- pauses ------------------------------------------------------------------------------------


def test_a_pause_without_a_mode_aborts(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        sent = await wire.underway("a")
        await wire.post("/pause_generation")
        assert meta(await sent)["finish_reason"]["type"] == "abort"

    run(serving(model), scenario)


def test_a_pause_is_answered_before_the_scheduler_has_it(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        sent = await wire.underway("a")
        wire.server.scheduler.held = True
        await wire.get("/openapi.json")
        await wire.post("/pause_generation", {"mode": "in_place"})
        assert not wire.server.scheduler.paused
        wire.server.scheduler.held = False
        await wire.get("/server_info")
        assert wire.server.scheduler.paused
        sent.cancel()

    run(serving(model), scenario)


def test_with_overlap_a_pause_in_place_stamps_a_token_wrongly(
    serving: Serving, model: Path, other: Path
) -> None:
    async def scenario(wire: Wire) -> None:
        frozen, computed, spans = await _swapped(wire, "in_place", other)
        assert computed == frozen + 1
        assert spans[0]["end"] == frozen

    run(serving(model, OVERLAP), scenario)


def test_without_overlap_a_pause_in_place_leaves_nothing(
    serving: Serving, model: Path, other: Path
) -> None:
    async def scenario(wire: Wire) -> None:
        frozen, computed, spans = await _swapped(wire, "in_place", other)
        assert computed == frozen == spans[0]["end"]

    run(serving(model), scenario)


def test_a_retracting_pause_processes_what_was_left(
    serving: Serving, model: Path, other: Path
) -> None:
    async def scenario(wire: Wire) -> None:
        frozen, computed, spans = await _swapped(wire, "retract", other)
        assert computed == frozen == spans[0]["end"]

    run(serving(model, ("--skip-tokenizer-init",)), scenario)


async def _swapped(wire: Wire, mode: str, other: Path) -> tuple[int, int, list[dict[str, Any]]]:
    """Tokens processed and tokens computed when the pause stood, and the spans of the whole."""
    await wire.update(other, "0")
    sent = await wire.underway("a")
    await wire.post("/pause_generation", {"mode": mode})
    await wire.get("/server_info")
    (req,) = [*wire.server.scheduler.running, *wire.server.scheduler.waiting]
    frozen, computed = len(req.entries), len(req.decoded.tokens) - 2
    await wire.update(other, "1")
    await wire.post("/continue_generation")
    await until(lambda: len(req.entries) > frozen + 3)
    await wire.post("/abort_request", {"rid": "a"})
    spans = meta(await sent)["weight_versions"]
    assert [span["version"] for span in spans] == ["0", "1"]
    return frozen, computed, spans


def test_a_pause_that_aborts_waits_for_frozen_requests_for_ever(
    serving: Serving, model: Path
) -> None:
    async def scenario(wire: Wire) -> None:
        sent = await wire.underway("a")
        await wire.post("/pause_generation", {"mode": "in_place"})
        pause = asyncio.create_task(wire.post("/pause_generation", {"mode": "abort"}))
        await until(lambda: len(wire.server.bodies("/pause_generation")) == 2)
        go_on = asyncio.create_task(wire.post("/continue_generation"))
        await asyncio.wait([pause, go_on, sent], timeout=0.2)
        assert not pause.done() and not go_on.done() and not sent.done()
        for task in (pause, go_on, sent):
            task.cancel()

    run(serving(model), scenario)


# --- aborts ------------------------------------------------------------------------------------


def test_a_frozen_request_ends_only_when_it_continues(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        sent = await wire.underway("a")
        await wire.post("/pause_generation", {"mode": "in_place"})
        frozen = await wire.entries("a")
        await wire.post("/abort_request", {"rid": "a"})
        assert await wire.entries("a") == frozen and not sent.done()
        await wire.post("/continue_generation")
        ended = meta(await sent)
        assert ended["completion_tokens"] == frozen + 1
        assert ended["finish_reason"]["type"] == "abort"

    run(serving(model), scenario)


def test_a_retracted_request_ends_at_once(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        sent = await wire.underway("a")
        await wire.post("/pause_generation", {"mode": "retract"})
        await wire.post("/abort_request", {"rid": "a"})
        ended = meta(await sent)
        assert len(ended["output_token_logprobs"]) == ended["weight_versions"][-1]["end"] > 3

    run(serving(model), scenario)


def test_an_abort_that_comes_too_early_is_lost(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.post("/pause_generation", {"mode": "in_place"})
        sent = wire.launch("a", 20)
        await until(lambda: "a" in wire.server.states)
        await wire.post("/abort_request", {"rid": "a"})
        await wire.post("/continue_generation")
        assert meta(await sent)["finish_reason"] == {"type": "length", "length": 20}

    run(serving(model), scenario)


def test_a_second_abort_is_dropped(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.post("/pause_generation", {"mode": "in_place"})
        sent = wire.launch("a", 200)
        await until(lambda: "a" in wire.server.states)
        await wire.post("/abort_request", {"rid": "a"})
        await wire.post("/abort_request", {"rid": ""})
        await wire.post("/continue_generation")
        await until(lambda: "a" in wire.server.running)
        await wire.post("/abort_request", {"rid": "a"})
        assert meta(await sent)["finish_reason"]["type"] == "length"

    run(serving(model), scenario)


def test_a_caller_who_goes_away_ends_its_request(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        runs = await wire.underway("a")
        runs.cancel()
        await until(lambda: not wire.server.known)
        await wire.post("/pause_generation", {"mode": "in_place"})
        waits = wire.launch("b")
        await until(lambda: "b" in wire.server.states)
        waits.cancel()
        await until(lambda: "b" not in wire.server.states)
        await wire.post("/continue_generation")
        await wire.get("/server_info")
        assert not wire.server.known

    run(serving(model), scenario)


# --- answers -----------------------------------------------------------------------------------


def test_a_request_that_is_refused_in_a_stream_is_an_event(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        wire.server.context = 8
        (event,) = await wire.generate("a", 9)
        assert event["error"]["code"] == 400
        assert await wire.post("/generate", request("b", 9, stream=False)) == 400

    run(serving(model), scenario)


def test_a_prompt_is_six_tokens_shorter_than_the_context(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        assert json.loads((await wire.get("/server_info"))[1])["max_req_input_len"] == 512 - 6
        (event,) = await wire.generate("a", 1, input_ids=[5] * 506)
        assert event["error"]["code"] == 400
        assert len(await wire.generate("b", 1, input_ids=[5] * 505)) == 1

    run(serving(model), scenario)


def test_a_request_that_fails_ends_as_aborted_with_a_status(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        sent = await wire.underway("a")
        wire.server.call(wire.server.scheduler.fail, "a", 500, "no memory")
        reason = meta(await sent)["finish_reason"]
        assert (reason["type"], reason["status_code"]) == ("abort", 500)

    run(serving(model), scenario)


def test_versions_of_tokens_come_with_the_last_event(
    serving: Serving, model: Path, other: Path
) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.update(other, "4")
        events = await wire.generate("a", 5)
        assert [e["meta_info"]["weight_version"] for e in events] == ["4"] * len(events)
        assert all("weight_versions" not in event["meta_info"] for event in events[:-1])
        assert meta(events)["weight_versions"] == [{"version": "4", "start": 0, "end": 5}]

    run(serving(model), scenario)


def test_events_that_no_one_took_become_one(serving: Serving, model: Path) -> None:
    def two_passes(scheduler: Scheduler) -> None:
        scheduler._step()
        scheduler._step()

    async def scenario(wire: Wire) -> None:
        sent = await wire.underway("a")
        await wire.post("/pause_generation", {"mode": "in_place"})
        frozen = await wire.entries("a")
        wire.server.call(two_passes, wire.server.scheduler)
        await wire.post("/abort_request", {"rid": "a"})
        await wire.post("/continue_generation")
        counts = [event["meta_info"]["completion_tokens"] for event in await sent]
        assert counts[-3:] == [frozen, frozen + 2, frozen + 3]

    run(serving(model), scenario)


def test_logprobs_are_tempered_and_not_truncated(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        sampling = {"max_new_tokens": 1, "temperature": 0.5, "top_k": 1, "ignore_eos": True}
        events = await wire.generate("a", sampling_params=sampling)
        ((logprob, token, text),) = meta(events)["output_token_logprobs"]
        # Of the only token that top_k left: 0 if truncation counted.
        assert logprob < -1e-6 and text is None and events[-1]["output_ids"] == [token]

    run(serving(model), scenario)


def test_ignore_eos_ignores_every_stop_token(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        every = {"max_new_tokens": 4, "temperature": 1.0, "stop_token_ids": list(range(27))}
        for ignore, kind in ((True, "length"), (False, "stop")):
            sampling = {**every, "ignore_eos": ignore}
            events = await wire.generate(f"a{ignore}", sampling_params=sampling)
            assert meta(events)["finish_reason"]["type"] == kind

    run(serving(model), scenario)


def test_scores_begin_with_none(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        (*_, last) = await wire.generate("a", 1, logprob_start_len=0)
        scores = last["meta_info"]["input_token_logprobs"]
        assert [token for _, token, _ in scores] == [5, 9]
        assert scores[0][0] is None and scores[1][0] < 0

    run(serving(model), scenario)


def test_the_last_id_of_the_vocabulary_is_written_as_0_in_scores(
    serving: Serving, model: Path
) -> None:
    async def scenario(wire: Wire) -> None:
        given = [5, 26, 9, 0]
        (*_, last) = await wire.generate("a", 1, logprob_start_len=0, input_ids=given)
        scores = last["meta_info"]["input_token_logprobs"]
        assert [token for _, token, _ in scores] == [5, 0, 9, 0]
        assert scores[1][0] != scores[3][0]

    run(serving(model), scenario)


def test_an_unknown_sampling_parameter_is_refused(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        bad = {**request("a", 1), "sampling_params": {"max_tokens": 2}}
        assert await wire.post("/generate", bad) == 400
        assert await wire.post("/generate", {**request("a", 1), "max_tokens": 2}) == 400

    run(serving(model), scenario)


# --- updates -----------------------------------------------------------------------------------


def test_an_update_without_a_pause_waits_for_what_runs(
    serving: Serving, model: Path, other: Path
) -> None:
    async def scenario(wire: Wire) -> None:
        wire.server.scheduler.delay_s = 0.005
        order: list[str] = []
        first = wire.launch("a", 20)
        await until(lambda: bool(wire.server.running))
        update = asyncio.create_task(wire.update(other, "1"))
        await until(lambda: bool(wire.server.bodies(UPDATE)))
        later = wire.launch("b", 1)
        for name, task in (("first", first), ("update", update), ("later", later)):
            task.add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]
        await asyncio.gather(first, update, later)
        assert order == ["first", "update", "later"]

    run(serving(model), scenario)


def test_tensors_are_taken_in_a_session_only(serving: Serving, model: Path, other: Path) -> None:
    async def scenario(wire: Wire) -> None:
        tensors = {"serialized_named_tensors": ["AA=="], "weight_version": "1"}
        names = {"names": [], "dtypes": [], "shapes": [], "group_name": "g"}
        assert await wire.post("/end_weight_update") == 400
        assert await wire.post("/update_weights_from_tensor", tensors) == 400
        assert await wire.post("/update_weights_from_distributed", names) == 400
        assert await wire.update(other, "1") == 200
        assert await wire.post("/begin_weight_update", {"selector": "all"}) == 200
        wire.server.refuse = ["/update_weights_from_tensor"]
        assert await wire.post("/update_weights_from_tensor", tensors) == 400
        assert await wire.post("/begin_weight_update") == 400
        assert await wire.post("/end_weight_update") == 200

    run(serving(model), scenario)


def test_an_update_never_ends_a_pause(serving: Serving, model: Path, other: Path) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.post("/pause_generation", {"mode": "in_place"})
        await wire.update(other, "1", keep_pause=False)
        assert wire.server.is_pause and wire.server.scheduler.paused

    run(serving(model), scenario)


def test_a_refused_flush_comes_after_weights_and_version(
    serving: Serving, model: Path, other: Path
) -> None:
    async def scenario(wire: Wire) -> None:
        sent = await wire.underway("a")
        before = wire.server.scheduler.weights
        await wire.post("/pause_generation", {"mode": "in_place"})
        assert await wire.update(other, "7", flush_cache=True) == 400
        assert wire.server.scheduler.version == "7" and wire.server.version == "default"
        assert wire.server.scheduler.weights is not before
        sent.cancel()

    run(serving(model), scenario)


def test_frozen_requests_keep_the_cache_from_being_flushed(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        sent = await wire.underway("a")
        for mode, status in (("in_place", 400), ("retract", 200)):
            await wire.post("/pause_generation", {"mode": mode})
            assert await wire.post("/flush_cache") == status
        sent.cancel()

    run(serving(model), scenario)


def test_a_flush_with_a_timeout_waits_for_those_that_wait_too(
    serving: Serving, model: Path
) -> None:
    async def scenario(wire: Wire) -> None:
        sent = await wire.underway("a")
        await wire.post("/pause_generation", {"mode": "retract"})
        assert await wire.post("/flush_cache", timeout=0.05) == 400
        flush = asyncio.create_task(wire.post("/flush_cache", timeout=10))
        await wire.post("/abort_request", {"rid": "a"})
        assert await flush == 200
        await sent

    run(serving(model), scenario)


# --- the rest ----------------------------------------------------------------------------------


def test_health_samples_unless_told_otherwise(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.post("/pause_generation", {"mode": "in_place"})
        for samples, status in ((True, 503), (False, 200)):
            wire.server.health_samples = samples
            assert (await wire.get("/health"))[0] == status

    run(serving(model), scenario)


def test_the_server_says_how_it_was_started(serving: Serving, model: Path) -> None:
    async def scenario(wire: Wire) -> None:
        info = json.loads((await wire.get("/server_info"))[1])
        assert info["version"] == "0.5.23" and len(info["internal_states"]) == 1
        assert info["disable_overlap_schedule"] is False and info["disable_radix_cache"] is True

    run(serving(model, OVERLAP), scenario)
