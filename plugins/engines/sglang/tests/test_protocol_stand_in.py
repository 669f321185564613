"""What the engine sends and how it takes what may come back, against the stand-in for SGLang's protocol, of which
``test_stand_in`` shows that it is as awkward as the sources say the server is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import EngineLost, PreflightError, WeightsError
from astraflow_core.types import GenerateRequest, Sampling, WeightSource
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance.subject import context, installed
from astraflow_tiny_model.folder import write_tiny_model

Serving = Callable[..., Any]
UPDATE = "/update_weights_from_disk"
LONG = Sampling(400, ignore_eos=True)
RETRACT = ("--skip-tokenizer-init",)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "other", hidden=32, init_std=0.3, context=512, seed=1)


def run(
    url: str, model: Path, scenario: Callable[[Any], Coroutine[Any, Any, None]], **keys: Any
) -> None:
    async def main() -> None:
        (build,) = installed("engine", "sglang", {"url": url, **keys}).variants.values()
        engine = build(context("engine", model.parent))
        async with asyncio.timeout(15):
            await engine.start(model)
            try:
                await scenario(engine)
            finally:
                await engine.close()

    asyncio.run(main())


def request(sampling: Sampling, name: str = "r") -> GenerateRequest:
    return GenerateRequest(name, np.array((5, 9, 3), np.int32), sampling)


def source(folder: Path, version: int = 1) -> WeightSource:
    return WeightSource("solver", version, folder / "model.safetensors", "", 0, 0.0)


async def underway(engine: Any, tokens: int = 5) -> asyncio.Future[Any]:
    sent = asyncio.ensure_future(engine.generate(request(LONG)))
    while (await engine.health())["tokens_generated"] < tokens:
        await asyncio.sleep(0.002)
    return sent


def test_no_default_that_aborts_is_left_to_the_server(
    serving: Serving, model: Path, other: Path
) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        sent = await underway(engine)
        for mode in ("keep", "abort"):
            await engine.pause(mode)
            # Of its own mode abort a server never returns that has frozen requests.
            assert stand_in.bodies("/pause_generation")[-1] == {"mode": "in_place"}
            await engine.load_weights(source(other))
            body = stand_in.bodies(UPDATE)[-1]
            assert body["abort_all_requests"] is False and body["flush_cache"] is False
            assert body["weight_version"] == "1"
            if mode == "keep":
                await engine.resume()
        assert (await sent).finish_reason == "abort"

    run(stand_in.url, model, scenario)
    assert stand_in.bodies(UPDATE)[0]["weight_version"] == "0"  # by the start


def test_retracted_requests_continue_with_keys_and_values_of_the_new_weights(
    serving: Serving, model: Path, other: Path
) -> None:
    stand_in = serving(model, RETRACT)

    async def scenario(engine: Any) -> None:
        sent = await underway(engine)
        await engine.pause("keep")
        assert stand_in.bodies("/pause_generation")[-1] == {"mode": "retract"}
        await engine.load_weights(source(other))
        # A flush that is part of the update would be refused after it.
        assert [path for path, _ in stand_in.calls][-2:] == ["/flush_cache", UPDATE]
        assert stand_in.bodies(UPDATE)[-1]["flush_cache"] is False
        await engine.resume()
        while (await engine.health())["tokens_generated"] < 40:
            await asyncio.sleep(0.002)
        await engine.abort(["r"])
        result = await sent
        assert set(result.versions.tolist()) == {0, 1}
        whole = np.concatenate([np.array((5, 9, 3), np.int32), result.tokens])
        logits = qwen3.logits(model, [(other / "model.safetensors", whole[:-1])])[2:]
        logprobs = qwen3.log_softmax(logits)[np.arange(len(result.tokens)), result.tokens]
        new = result.versions == 1
        np.testing.assert_allclose(result.logprobs[new], logprobs[new], atol=1e-5)

    run(stand_in.url, model, scenario, keep="retract")
    assert not stand_in.scheduler.stale_cache


def test_a_flush_that_is_refused_changes_nothing(
    serving: Serving, model: Path, other: Path
) -> None:
    stand_in = serving(model, RETRACT)

    async def scenario(engine: Any) -> None:
        await engine.pause("keep")
        stand_in.refuse = ["/flush_cache"]
        with pytest.raises(WeightsError, match="does not flush its cache, so version 0 stays"):
            await engine.load_weights(source(other))
        assert (await engine.health())["version"] == 0
        assert [body["weight_version"] for body in stand_in.bodies(UPDATE)] == ["0"]
        await engine.load_weights(source(other))
        await engine.resume()
        result = await engine.generate(request(Sampling(3, ignore_eos=True)))
        assert result.versions.tolist() == [1, 1, 1]

    run(stand_in.url, model, scenario, keep="retract")


def test_a_refused_version_is_replaced_by_the_one_before_while_paused(
    serving: Serving, model: Path, other: Path
) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        await engine.pause("keep")
        stand_in.refuse = [UPDATE]
        with pytest.raises(WeightsError, match="version 0 is loaded again"):
            await engine.load_weights(source(other))
        assert [b["weight_version"] for b in stand_in.bodies(UPDATE)] == ["0", "1", "0"]
        assert stand_in.scheduler.paused
        await engine.resume()
        result = await engine.generate(request(Sampling(3, ignore_eos=True)))
        assert result.versions.tolist() == [0, 0, 0]

    run(stand_in.url, model, scenario)


def test_an_engine_that_cannot_go_back_is_lost_with_all_that_run_and_wait(
    serving: Serving, model: Path, other: Path
) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        runs = await underway(engine)
        await engine.pause("keep")
        waits = asyncio.ensure_future(engine.generate(request(LONG, "late")))
        await asyncio.sleep(0)
        stand_in.refuse = [UPDATE, UPDATE]
        with pytest.raises(EngineLost, match=r"refused version 1 .* and then version 0"):
            await engine.load_weights(source(other))
        for sent in (runs, waits):
            with pytest.raises(EngineLost):
                await sent

    run(stand_in.url, model, scenario)


def test_weights_are_not_loaded_while_anything_may_be_computed(
    serving: Serving, model: Path, other: Path
) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        with pytest.raises(RuntimeError, match="only while it is paused"):
            await engine.load_weights(source(other))
        assert len(stand_in.bodies(UPDATE)) == 1

    run(stand_in.url, model, scenario)


def test_a_stream_that_repeats_nothing_is_understood_too(serving: Serving, model: Path) -> None:
    stand_in = serving(model)
    stand_in.repeats = False

    async def scenario(engine: Any) -> None:
        result = await engine.generate(request(Sampling(9, ignore_eos=True)))
        assert (len(result.tokens), len(result.logprobs), len(result.versions)) == (9, 9, 9)
        assert (await engine.health())["tokens_generated"] == 9

    run(stand_in.url, model, scenario)


def test_a_stop_token_is_heeded_though_ignore_eos_makes_sglang_ignore_it(
    serving: Serving, model: Path
) -> None:
    stand_in = serving(model)
    greedy = Sampling(12, temperature=0, ignore_eos=True)

    async def scenario(engine: Any) -> None:
        free = (await engine.generate(request(greedy))).tokens.tolist()
        stop = Sampling(300, temperature=0, ignore_eos=True, stop_token_ids=(free[5],))
        result = await engine.generate(request(stop))
        assert result.tokens.tolist() == free[: free.index(free[5]) + 1]
        assert result.finish_reason == "stop"
        assert stand_in.bodies("/abort_request")

    run(stand_in.url, model, scenario)


def test_a_server_that_is_gone_ends_the_engine(model: Path, serving: Serving) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        sent = await underway(engine)
        await asyncio.to_thread(stand_in.stop)
        stand_in.stop = lambda: None
        with pytest.raises(EngineLost, match="exited"):
            await sent

    run(stand_in.url, model, scenario)


def test_one_that_samples_nothing_is_given_up(serving: Serving, model: Path) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        sent = await underway(engine)
        stand_in.scheduler.frozen = True
        with pytest.raises(EngineLost, match="sampled nothing for"):
            await sent

    run(stand_in.url, model, scenario, stall_deadline_s=0.2)


def test_a_server_has_to_be_there(model: Path) -> None:
    async def nothing(engine: Any) -> None:
        pass

    with pytest.raises(PreflightError, match="no SGLang server answers"):
        run("http://127.0.0.1:9", model, nothing)


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"version": "0.6.1"}, "SGLang 0.6.1 is not the version .* 0.5.23: it has no /continue"),
        ({"version": None}, "SGLang of a version that it does not say"),
    ],
)
def test_a_version_that_it_was_not_written_for_is_warned_of(
    serving: Serving,
    model: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    info: dict[str, Any],
    said: str,
) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        assert engine.context_length == 512 - 6

    run(stand_in.url, model, scenario)
    assert "written for" not in caplog.text
    stand_in.info |= info
    monkeypatch.delitem(stand_in.routes, "/continue_generation")
    run(stand_in.url, model, scenario)
    assert re.search(said, caplog.text), caplog.text
