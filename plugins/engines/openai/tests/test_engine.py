"""What differs between servers and what goes wrong with them, against the stand-in of ``conftest``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import (
    AstraFlowError,
    DeadlineExceeded,
    EngineLost,
    PreflightError,
    UserError,
)
from astraflow_core.types import GenerateRequest, Sampling
from astraflow_testing.conformance.subject import context, installed
from astraflow_tiny_model.folder import ALPHABET, write_tiny_model

Serving = Callable[..., Any]
Scenario = Callable[[Any], Coroutine[Any, Any, None]]
PROMPT = (5, 9, 3)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model", hidden=32, init_std=0.3, context=512)


def run(url: str, model: Path, scenario: Scenario, **keys: Any) -> None:
    async def main() -> None:
        (build,) = installed("engine", "openai", {"url": url, **keys}).variants.values()
        engine = build(context("engine", model.parent))
        async with asyncio.timeout(15):
            await engine.start(model)
            try:
                await scenario(engine)
            finally:
                await engine.close()

    asyncio.run(main())


async def nothing_to_do(engine: Any) -> None:
    pass


def request(sampling: Sampling, prompt: tuple[int, ...] = PROMPT) -> GenerateRequest:
    return GenerateRequest("r", np.array(prompt, np.int32), sampling)


def greedy(stand_in: Any, count: int) -> list[int]:
    """The greedy completion of the model itself."""
    sequence = stand_in.decoder.sequence(list(PROMPT))
    return [sequence.next(Sampling(1, temperature=0)).token for _ in range(count)]


# --- text only ---------------------------------------------------------------------------------


def test_a_server_of_text_gets_text_and_gives_tokens_without_logprobs(
    serving: Serving, model: Path
) -> None:
    stand_in = serving(model, plain=True)
    expected = greedy(stand_in, 12)
    assert stand_in.eos not in expected

    async def scenario(engine: Any) -> None:
        result = await engine.generate(request(Sampling(12, temperature=0)))
        assert (result.tokens.tolist(), result.finish_reason) == (expected, "length")
        assert np.isnan(result.logprobs).all() and result.logprobs.dtype == np.float32
        assert result.versions.tolist() == [0] * 12
        assert stand_in.bodies[-1]["prompt"] == "".join(ALPHABET[token] for token in PROMPT)
        assert (await engine.health())["tokens_generated"] == 12

    run(stand_in.url, model, scenario, tokens="text")


def test_where_a_server_of_text_stops_by_itself_the_end_is_put_back(
    serving: Serving, model: Path
) -> None:
    stand_in = serving(model, plain=True)

    async def scenario(engine: Any) -> None:
        results = [await engine.generate(request(Sampling(200, temperature=1.5))) for _ in range(6)]
        ended = [r for r in results if r.finish_reason == "stop"]
        assert ended, "no sample ended by itself"
        for result in results:
            at = [i for i, token in enumerate(result.tokens) if token == stand_in.eos]
            assert at == ([len(result.tokens) - 1] if result.finish_reason == "stop" else [])

    run(stand_in.url, model, scenario, tokens="text")


def test_stops_are_found_in_the_text_and_end_the_stream(serving: Serving, model: Path) -> None:
    stand_in = serving(model, plain=True)
    free = greedy(stand_in, 12)
    pair = (free[3], free[4])
    end = next(e for e in range(2, 13) if tuple(free[e - 2 : e]) == pair)
    first = free.index(free[5]) + 1

    async def scenario(engine: Any) -> None:
        for stop, count in (
            ({"stop_sequences": (pair,)}, end),
            ({"stop_token_ids": (free[5],)}, first),
        ):
            result = await engine.generate(request(Sampling(400, temperature=0, **stop)))
            assert (result.tokens.tolist(), result.finish_reason) == (free[:count], "stop")

    run(stand_in.url, model, scenario, tokens="text")


@pytest.mark.parametrize("unknown", [{"top_k": 3}, {"min_p": 0.1}, {"ignore_eos": True}])
def test_what_openai_does_not_define_is_refused_not_ignored(
    serving: Serving, model: Path, unknown: dict[str, Any]
) -> None:
    stand_in = serving(model, plain=True)

    async def scenario(engine: Any) -> None:
        with pytest.raises(ValueError, match="OpenAI's interface has no"):
            await engine.generate(request(Sampling(4, **unknown)))
        with pytest.raises(UserError, match="only with tokens = 'ids'"):
            await engine.score(np.array(PROMPT, np.int32))
        assert len(stand_in.bodies) == 1  # the probe of the start

    run(stand_in.url, model, scenario, tokens="text")


# --- starts ------------------------------------------------------------------------------------


def test_a_server_that_knows_no_token_ids_is_found_out_at_the_start(
    serving: Serving, model: Path
) -> None:
    stand_in = serving(model, plain=True)
    with pytest.raises(PreflightError, match=r"422 unexpected fields.*return_token_ids"):
        run(stand_in.url, model, nothing_to_do)


def test_one_that_ignores_what_it_does_not_know_is_found_out_too(
    serving: Serving, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = serving(model)
    stream = stand_in._stream

    async def without_ids(response: Any, body: Any, prompt: Any) -> None:
        stand_in.plain = True
        await stream(response, {**body, "prompt": prompt}, prompt)

    monkeypatch.setattr(stand_in, "_stream", without_ids)
    with pytest.raises(PreflightError, match="set tokens = 'text'"):
        run(stand_in.url, model, nothing_to_do)


def test_the_model_has_to_be_named_where_there_are_several(serving: Serving, model: Path) -> None:
    stand_in = serving(model)
    stand_in.models = ["large", "small"]
    with pytest.raises(PreflightError, match="serves 'large', 'small': name one"):
        run(stand_in.url, model, nothing_to_do)
    with pytest.raises(PreflightError, match="instead of 'medium'"):
        run(stand_in.url, model, nothing_to_do, served_model="medium")
    run(stand_in.url, model, nothing_to_do, served_model="small")
    assert stand_in.bodies[-1]["model"] == "small"


def test_a_server_that_cannot_list_its_models_serves_the_one_that_is_named(
    serving: Serving, model: Path
) -> None:
    stand_in = serving(model)
    stand_in.lists = False
    run(stand_in.url, model, nothing_to_do, served_model="tiny")
    with pytest.raises(PreflightError, match="404 no such model"):
        run(stand_in.url, model, nothing_to_do, served_model="huge")
    with pytest.raises(PreflightError, match="set served_model"):
        run(stand_in.url, model, nothing_to_do, retry_s=0.1)


def test_the_key_is_read_from_the_environment_and_sent(
    serving: Serving, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = serving(model)
    with pytest.raises(PreflightError, match="no such variable"):
        run(stand_in.url, model, nothing_to_do, api_key_env="A_KEY")
    monkeypatch.setenv("A_KEY", "secret")
    run(stand_in.url, model, nothing_to_do, api_key_env="A_KEY")
    assert stand_in.keys == ["Bearer secret"]


def test_an_unreachable_server_is_reported_with_its_url(model: Path) -> None:
    with pytest.raises(PreflightError, match=r"url = 'http://127.0.0.1:9/v1'.*is it running"):
        run("http://127.0.0.1:9/v1", model, nothing_to_do, retry_s=0.1)


# --- trouble -----------------------------------------------------------------------------------


def test_a_server_that_is_busy_is_tried_again_until_it_answers(
    serving: Serving, model: Path
) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        stand_in.trouble = [429, 503, 500]
        sent = len(stand_in.bodies)
        result = await engine.generate(request(Sampling(3, ignore_eos=True)))
        assert len(result.tokens) == 3 and len(stand_in.bodies) == sent + 4

    run(stand_in.url, model, scenario)


def test_one_that_stays_away_is_lost(serving: Serving, model: Path) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        stand_in.trouble = [503] * 1000
        with pytest.raises(EngineLost, match=r"gave up after 0 s and .* tries: POST .* 503"):
            await engine.generate(request(Sampling(3)))
        assert 3 < 1000 - len(stand_in.trouble) < 100

    run(stand_in.url, model, scenario, retry_s=0.3)


def test_a_refusal_is_not_tried_again(serving: Serving, model: Path) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        stand_in.trouble = [400]
        with pytest.raises(AstraFlowError, match="400 later") as caught:
            await engine.generate(request(Sampling(3)))
        assert not isinstance(caught.value, EngineLost)
        await engine.generate(request(Sampling(3)))

    run(stand_in.url, model, scenario)


def test_an_answer_that_breaks_off_is_an_error_and_no_other_sample(
    serving: Serving, model: Path
) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        stand_in.cut_after = 4
        sent = len(stand_in.bodies)
        with pytest.raises(AstraFlowError, match="interrupted"):
            await engine.generate(request(Sampling(9, ignore_eos=True)))
        assert len(stand_in.bodies) == sent + 1

    run(stand_in.url, model, scenario)


def test_silence_has_a_deadline(serving: Serving, model: Path) -> None:
    stand_in = serving(model)

    async def scenario(engine: Any) -> None:
        stand_in.delay_s = 5
        with pytest.raises(DeadlineExceeded, match="/completions"):
            await engine.generate(request(Sampling(9, ignore_eos=True)))

    run(stand_in.url, model, scenario, stall_deadline_s=0.2)


def test_an_abort_closes_the_connection(serving: Serving, model: Path) -> None:
    stand_in = serving(model)
    stand_in.delay_s = 0.002

    async def scenario(engine: Any) -> None:
        sent = asyncio.ensure_future(engine.generate(request(Sampling(400, ignore_eos=True))))
        while (await engine.health())["tokens_generated"] < 5:
            await asyncio.sleep(0.002)
        await engine.abort(["r"])
        result = sent.result()
        assert result.finish_reason == "abort" and 5 <= len(result.tokens) < 400
        while not stand_in.ended:
            await asyncio.sleep(0.002)

    run(stand_in.url, model, scenario)
