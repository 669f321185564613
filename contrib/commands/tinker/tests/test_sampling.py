"""Samples come from the requested version, with the log-probs that transformers computes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from tinker_cases import DEADLINE_S, data, in_loop, request, service
from transformers import AutoModelForCausalLM

from astraflow_contrib_tinker import service as service_module
from astraflow_contrib_tinker.service import Service
from astraflow_contrib_tinker.sessions import ClientSampler
from astraflow_contrib_tinker.wire.results import SampleResult
from astraflow_contrib_tinker.work.futures import FailedRequest
from astraflow_contrib_tinker.work.sampling import SampleWish, cut_at
from astraflow_contrib_tinker.work.training import TrainedModel
from astraflow_core.errors import Refused
from astraflow_core.protocols.trainer import AdamWStep
from astraflow_core.types import GenerateResult, Sampling

PROMPT = np.array([3, 5, 7], np.int32)


def wish(stops: tuple[str, ...] = (), count: int = 3, **sampling: float) -> SampleWish:
    chosen = Sampling(int(sampling.pop("max_tokens", 6)), ignore_eos=True, **sampling)  # type: ignore[arg-type]
    return SampleWish(PROMPT, count, chosen, stops, True)


async def sampled(found: Service, sampler: ClientSampler, asked: SampleWish) -> SampleResult:
    promise, ids = found.sample(sampler, None, b"", asked)
    assert len(ids) == asked.count
    assert all(each.startswith(f"v{sampler.snapshot.version}-") for each in ids)
    outcome = (await found.promises.fetch(promise.id, DEADLINE_S)).outcome
    if isinstance(outcome, FailedRequest):
        raise AssertionError(outcome.error)
    assert isinstance(outcome, SampleResult)
    return outcome


def reference(folder: Path, tokens: list[int]) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        logprobs = model(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
    found = logprobs[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    return np.asarray(found.numpy())


def train(model: TrainedModel) -> None:
    model.gradient(request("cross_entropy", data()))
    model.step(AdamWStep(lr=3e-2))


@pytest.mark.slow
def test_every_sampler_keeps_its_version_on_one_engine(tmp_path: Path) -> None:
    async def scenario() -> None:
        found = service(tmp_path, engines=1)
        session = found.begin({})
        model = found.create_model(session, 0, 0, 1, {})
        await found.computing.do(model.open)
        first = await found.snapshot(model, 0, follow=False)
        await found.computing.do(train, model)
        saved = await found.save(model, "sampler_weights", "named", False)
        second = found.create_sampler(session, 1, saved.path)
        base = found.create_sampler(session, 2, None)
        folders = (first.snapshot.folder, second.snapshot.folder, found.base.folder)
        results = await asyncio.gather(
            *(sampled(found, each, wish()) for each in (first, second, base) * 2)
        )
        scores = []
        for result, folder in zip(results, folders * 2, strict=True):
            for sequence in result.sequences:
                whole = [*PROMPT.tolist(), *sequence.tokens.tolist()]
                expected = reference(folder, whole)
                assert sequence.finish_reason == "length" and len(sequence.tokens) == 6
                np.testing.assert_allclose(sequence.logprobs, expected[2:], atol=1e-4)
                assert result.prompt_logprobs is not None and np.isnan(result.prompt_logprobs[0])
                np.testing.assert_allclose(result.prompt_logprobs[1:], expected[:2], atol=1e-4)
            assert result.prompt_logprobs is not None
            scores.append(result.prompt_logprobs)
        assert np.allclose(scores[0][1:], scores[2][1:], atol=1e-5)
        assert not np.allclose(scores[0][1:], scores[1][1:], atol=1e-2)
        await follows(found, model)
        await refuses(found, first)
        await found.close()

    in_loop(scenario())


@pytest.mark.slow
def test_adapters_of_several_models_are_sampled_at_once_in_one_engine(tmp_path: Path) -> None:
    """Also an adapter that was saved by name; each has the results of a merged one."""

    async def scenario() -> None:
        found = service(tmp_path, engines=3)
        samplers, merged = [], []
        for number, rank in enumerate((2, 4)):
            session = found.begin({})
            model = found.create_model(session, 0, rank, number, {})
            await found.computing.do(model.open)
            await found.computing.do(train, model)
            samplers.append(await found.snapshot(model, 0, follow=False))
            await found.computing.do(train, model)
            saved = await found.save(model, "sampler_weights", "named", False)
            merged.append(tmp_path / f"merged-{number}")
            await found.computing.do(model.save_weights, merged[-1])
            samplers.append(found.create_sampler(session, 1, saved.path))
        results = await asyncio.gather(*(sampled(found, each, wish()) for each in samplers * 2))
        for result, folder in zip(results[1::2], merged * 2, strict=True):
            for sequence in result.sequences:
                expected = reference(folder, [*PROMPT.tolist(), *sequence.tokens.tolist()])
                np.testing.assert_allclose(sequence.logprobs, expected[2:], atol=1e-4)
                assert result.prompt_logprobs is not None
                np.testing.assert_allclose(result.prompt_logprobs[1:], expected[:2], atol=1e-4)
        scores = [result.prompt_logprobs for result in results[:4]]
        assert len({tuple(np.round(score[1:], 4)) for score in scores if score is not None}) == 4
        (only,) = await found.pool._engines.close()
        await only.engine.close()
        await found.close()

    in_loop(scenario())


async def follows(found: Service, model: TrainedModel) -> None:
    """A sampler that follows gets later weights of that kind, one that does not keeps its own."""
    one = await found.snapshot(model, 10, follow=True)
    still = await found.snapshot(model, 11, follow=False)
    before, kept = one.snapshot.version, still.snapshot.version
    newer = await found.snapshot(model, 12, follow=True)
    assert one.snapshot == newer.snapshot and one.snapshot.version > before
    assert still.snapshot.version == kept
    greedy = wish(temperature=0.0, count=2)
    result = await sampled(found, one, greedy)
    assert np.array_equal(result.sequences[0].tokens, result.sequences[1].tokens)


async def refuses(found: Service, sampler: ClientSampler) -> None:
    for prompt, said in (([], "empty"), ([999], "vocabulary"), ([1] * 600, "more than")):
        asked = SampleWish(np.array(prompt, np.int32), 1, Sampling(4), (), False)
        with pytest.raises(AssertionError, match=said):
            await sampled(found, sampler, asked)
    promise, ids = found.sample(sampler, 7, b"one", wish())
    assert found.sample(sampler, 7, b"one", wish()) == (promise, ids)
    with pytest.raises(Refused, match="another request of this sampler"):
        found.sample(sampler, 7, b"other", wish())
    with pytest.raises(Refused, match="nothing was saved"):
        found.store.find("tinker://a/sampler_weights/b", "sampler_weights")


@pytest.mark.slow
def test_unnamed_weights_are_bounded_and_end_with_their_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "KEPT_SNAPSHOTS", 2)

    async def scenario() -> None:
        found = service(tmp_path, models=1)
        session = found.begin({})
        model = found.create_model(session, 0, 0, 1, {})
        assert found.create_model(session, 0, 0, 1, {}) is model
        with pytest.raises(Refused, match="as many as --models allows"):
            found.create_model(session, 1, 0, 1, {})
        await found.computing.do(model.open)
        samplers = [await found.snapshot(model, number, follow=False) for number in range(4)]
        assert len(list((found.base.scratch / "snapshots").glob("*/*"))) == 2
        with pytest.raises(AssertionError, match="have been removed"):
            await sampled(found, samplers[0], wish())
        assert len((await sampled(found, samplers[3], wish())).sequences) == 3
        monkeypatch.setattr(service_module, "IDLE_S", -1.0)
        found.end_idle()
        assert not found.sessions
        await found.close()
        assert not list((found.base.scratch / "snapshots").iterdir())

    in_loop(scenario())


def test_a_sequence_ends_with_the_token_that_completes_a_stop() -> None:
    texts = ["a", "b", "cd", "e", "f"]

    def text(tokens: np.ndarray) -> str:
        return "".join(texts[token] for token in tokens)

    count = len(texts)
    whole = GenerateResult(
        "r", np.arange(count, dtype=np.int32), -np.ones(count, np.float32),
        np.zeros(count, np.int32), "length",
    )  # fmt: skip
    for stops, kept in ((("bc",), 3), (("zz", "e"), 4), (("zz",), 5), ((), 5), (("a", "f"), 1)):
        found = cut_at(whole, stops, text)
        assert len(found.tokens) == len(found.logprobs) == len(found.versions) == kept
        assert found.finish_reason == ("length" if kept == count else "stop")
