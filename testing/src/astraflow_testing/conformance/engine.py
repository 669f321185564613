"""The suite that an engine inherits."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from astraflow_core.errors import AstraFlowError
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling
from astraflow_testing.conformance._checks import Claims, assert_whole
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance._models.engine_adapter_tests import EngineAdapterTests
from astraflow_testing.conformance._models.engine_control import ControlTests, Examine, Run
from astraflow_testing.conformance._models.engine_rig import (
    DEMANDS,
    GREEDY,
    PROMPT,
    Examiner,
    Reference,
    Served,
    complete,
    partial,
    serve,
    surprise,
)
from astraflow_testing.conformance._models.engine_routing_tests import EngineRoutingTests
from astraflow_testing.conformance._models.images.engine_image_tests import EngineImageTests
from astraflow_testing.conformance.subject import Conformance, Subject, installed
from astraflow_tiny_model.folder import write_tiny_model

__all__ = ["EngineConformance", "Reference", "Subject", "installed"]

SAMPLINGS = {
    "temperature-1": Sampling(24, ignore_eos=True),
    "temperature-0.6": Sampling(24, temperature=0.6, ignore_eos=True),
    "temperature-1.5": Sampling(24, temperature=1.5, ignore_eos=True),
    "top-k": Sampling(24, temperature=0.8, top_k=4, ignore_eos=True),
    "top-p": Sampling(24, temperature=1.2, top_p=0.7, ignore_eos=True),
    "min-p": Sampling(24, temperature=1.3, min_p=0.2, ignore_eos=True),
    "greedy": GREEDY,
}
HEALTH = ("running", "waiting", "version", "tokens_generated", "prompt_tokens", "decode_seconds")


class EngineConformance(
    Conformance, Claims, ControlTests, EngineRoutingTests, EngineAdapterTests, EngineImageTests
):
    """Inherit this and give the fixture ``component``::

        class TestMyEngine(EngineConformance):
            @pytest.fixture
            def component(self) -> Subject:
                return installed("engine", "mine", {"device": "cpu"})

    The engine is started on a model of 27 tokens and about 25 000 float32 parameters in the Qwen3
    architecture, and compared with a forward pass in float64. An engine that cannot serve it overrides the
    fixtures ``model`` (a folder with ``config.json``), ``other`` (a safetensors file of other weights for
    it) and ``reference``. Tests may not be replaced, only named in ``expected_failures``.
    """

    deadline_s = 20.0
    """Most seconds of one test."""

    @pytest.fixture
    def component(self) -> Subject:
        """The engine, in one configuration; required."""
        pytest.fail(
            "define the fixture `component`; return installed('engine', NAME, {…keys…}) or a Subject",
            pytrace=False,
        )

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """The folder that the engine starts with."""
        return write_tiny_model(tmp_path / "model", hidden=32, init_std=0.3, context=2048)

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        """The weights of another version."""
        folder = write_tiny_model(tmp_path / "other", hidden=32, init_std=0.3, context=2048, seed=1)
        return folder / "model.safetensors"

    @pytest.fixture
    def reference(self, model: Path) -> Reference:
        """Where the logits to compare with come from."""

        def logits(prompt: qwen3.Ids, tokens: qwen3.Ids, files: Sequence[Path]) -> qwen3.Floats:
            # The last sampled token was fed to nothing; each other was fed to sample the next one.
            fed = np.concatenate([prompt, tokens[:-1]])
            parts: list[tuple[Path, qwen3.Ids]] = []
            start = 0
            for file, group in itertools.groupby(files):
                end = start + len(list(group)) + (len(prompt) - 1 if not parts else 0)
                parts.append((file, fed[start:end]))
                start = end
            return qwen3.logits(model, parts)[len(prompt) - 1 :]

        return logits

    @pytest.fixture
    def run(self, component: Subject, model: Path, tmp_path: Path) -> Run:
        """``run(scenario)`` runs a coroutine function on a started engine."""
        return lambda scenario: serve(component, model, tmp_path, self.deadline_s, scenario)

    @pytest.fixture
    def examiner(self, model: Path, other: Path, reference: Reference) -> Examine:
        """``examiner(served)`` compares results; version 0 is ``model``, 1 is ``other``."""
        files = {0: model / "model.safetensors", 1: other}
        return lambda served: Examiner(
            reference, served.engine.logprob_semantics, self.tolerance, files
        )

    def test_the_suite_is_whole(self, request: pytest.FixtureRequest) -> None:
        assert_whole("engine", request, ("model", "other", "reference"))

    @pytest.mark.parametrize("name", SAMPLINGS)
    def test_tokens_and_logprobs_follow_the_declared_semantics(
        self,
        name: str,
        run: Run,
        examiner: Examine,
    ) -> None:
        async def scenario(served: Served) -> None:
            sampling, check = SAMPLINGS[name], examiner(served)
            sent = [served.launch(sampling, (*PROMPT, *range(2, 2 + n))) for n in range(8)]
            logits, tokens = [], []
            for one in sent:
                result = await one.task
                check.examine(one.request, result)
                complete(one.request, result, 24, "length")
                logits.append(check.logits(one.request, result))
                tokens.append(result.tokens)
            if sampling.temperature:
                away = surprise(np.concatenate(logits), np.concatenate(tokens), sampling)
                DEMANDS.that(
                    abs(away) < 5,
                    f"tokens under {sampling} are {away:+.1f} standard deviations likelier than samples of "
                    "the distribution",
                    "tokens are sampled from the softmax of logits / temperature over the kept tokens",
                )

        run(scenario)

    def test_samples_differ_and_greedy_ones_do_not(self, run: Run) -> None:
        async def scenario(served: Served) -> None:
            sampled = [(await served.generate(SAMPLINGS["temperature-1"]))[1] for _ in range(4)]
            greedy = [(await served.generate(GREEDY))[1] for _ in range(2)]
            DEMANDS.that(
                len({result.tokens.tobytes() for result in sampled}) > 1,
                "four samples of one prompt at temperature 1 are the same",
                "requests are sampled independently; otherwise a group has nothing to compare",
            )
            DEMANDS.that(
                greedy[0].tokens.tolist() == greedy[1].tokens.tolist(),
                f"two greedy completions differ: {[g.tokens.tolist() for g in greedy]}",
                "temperature 0 is greedy",
            )

        run(scenario)

    def test_ragged_requests_join_and_leave(self, run: Run, examiner: Examine) -> None:
        async def scenario(served: Served) -> None:
            check, sent = examiner(served), []
            for number, (given, asked) in enumerate(
                zip((3, 9, 1, 30, 5, 12, 2), (40, 3, 25, 50, 1, 33, 8), strict=True)
            ):
                prompt = [2 + (number + i) % 25 for i in range(given)]
                sent.append(served.launch(Sampling(asked, ignore_eos=True), prompt))
                await served.generated(3 * number)
            for one in sent:
                result = await one.task
                check.examine(one.request, result)
                complete(one.request, result, one.request.sampling.max_tokens, "length")
            await _counted(served, [one.request for one in sent], [await o.task for o in sent])

        run(scenario)

    def test_stop_tokens_and_stop_sequences(self, run: Run) -> None:
        async def scenario(served: Served) -> None:
            free: list[int] = (await served.generate(GREEDY))[1].tokens.tolist()

            def until(*stop: int) -> list[int]:
                ends = range(len(stop), len(free) + 1)
                return free[: next(e for e in ends if tuple(free[e - len(stop) : e]) == stop)]

            pair, absent = (free[3], free[4]), next(t for t in range(2, 27) if t not in free)
            before = (*PROMPT[-1:], free[0])
            cases: list[tuple[Sampling, list[int], str]] = [
                (replace(GREEDY, stop_token_ids=(absent, free[5])), until(free[5]), "stop"),
                (
                    replace(GREEDY, stop_sequences=((absent, absent), pair)), until(*pair), "stop",
                ),
                (replace(GREEDY, stop_token_ids=(absent,)), free, "length"),
                (replace(GREEDY, max_tokens=len(until(*pair)), stop_sequences=(pair,)),
                 until(*pair), "stop"),
                (replace(GREEDY, max_tokens=1), free[:1], "length"),
            ]  # fmt: skip
            if before not in itertools.pairwise(free):
                cases.append((replace(GREEDY, stop_sequences=(before,)), free, "length"))
            for sampling, expected, reason in cases:
                _, result = await served.generate(sampling)
                DEMANDS.that(
                    (result.tokens.tolist(), result.finish_reason) == (expected, reason),
                    f"{sampling} gave {result.tokens.tolist()} ({result.finish_reason}), "
                    f"expected {expected} ({reason})",
                    "stop tokens and stop sequences among the sampled tokens end a sequence and belong to "
                    "it; max_tokens ends it with 'length'",
                )

        run(scenario)

    def test_the_models_own_end_of_sequence(self, model: Path, run: Run) -> None:
        eos = int(json.loads((model / "config.json").read_text())["eos_token_id"])

        async def scenario(served: Served) -> None:
            heeding = [served.launch(Sampling(50, temperature=1.5)) for _ in range(16)]
            ignoring = [
                served.launch(Sampling(50, temperature=1.5, ignore_eos=True)) for _ in range(4)
            ]
            ended = [await one.task for one in heeding]
            for result in ended:
                at = result.tokens.tolist().index(eos) if eos in result.tokens else None
                expected = (50, "length") if at is None else (at + 1, "stop")
                DEMANDS.that(
                    (len(result.tokens), result.finish_reason) == expected,
                    f"{len(result.tokens)} tokens and {result.finish_reason!r}, with the end-of-sequence "
                    f"token at {at}",
                    "the end-of-sequence token ends a sequence with 'stop' and is its last token",
                )
            assert any(r.finish_reason == "stop" for r in ended), "no sample ended by itself"
            for one in ignoring:
                complete(one.request, await one.task, 50, "length")

        run(scenario)

    def test_what_cannot_be_served_is_refused(self, run: Run) -> None:
        async def scenario(served: Served) -> None:
            room = served.engine.context_length - len(PROMPT)
            for sampling, prompt, what in (
                (Sampling(room + 1), PROMPT, "a request longer than context_length"),
                (Sampling(4), (), "an empty prompt"),
            ):
                try:
                    _, result = await served.generate(sampling, prompt)
                except ValueError:
                    continue
                DEMANDS.broken(
                    f"{what} returned {len(result.tokens)} tokens", f"ValueError for {what}"
                )
            full = [2 + i % 25 for i in range(served.engine.context_length - 6)]
            request, result = await served.generate(Sampling(6, ignore_eos=True), full)
            complete(request, result, 6, "length")

        run(scenario)

    def test_health_counts_requests_and_tokens(self, run: Run) -> None:
        async def scenario(served: Served) -> None:
            missing = set(HEALTH) - (await served.engine.health()).keys()
            DEMANDS.that(not missing, f"health() lacks {sorted(missing)}", f"at least {HEALTH}")
            sent = await served.underway()
            health = await served.engine.health()
            bad = [key for key, value in health.items() if not math.isfinite(value)]
            DEMANDS.that(
                not bad, f"health() gives no finite number for {bad}", "gauges and counters"
            )
            DEMANDS.that(
                health["running"] == len(sent),
                f"health() reports {health['running']} running with {len(sent)} requests underway",
                "'running' is the number of requests that sample",
            )
            await served.engine.abort([one.request.id for one in sent])
            results = await served.ended(sent, "abort(ids)")
            await _counted(served, [one.request for one in sent], results)

        run(scenario)

    def test_abort_ends_the_named_requests_only(self, run: Run, examiner: Examine) -> None:
        async def scenario(served: Served) -> None:
            check = examiner(served)
            # While it is alone, what is sampled is its own.
            (named,) = await served.underway(1, tokens=5)
            neighbours = await served.underway(2)
            sent = [neighbours[0], named, neighbours[1]]
            await served.engine.abort([named.request.id, "unknown"])
            (ended,) = await served.ended(sent[1:2], "abort(ids)")
            partial([ended], sampled=5)
            check.examine(sent[1].request, ended)
            DEMANDS.that(
                not sent[0].task.done() and not sent[2].task.done(),
                "abort of one request ended its neighbours",
                "abort ends the named requests",
            )
            count = (await served.engine.health())["tokens_generated"]
            await served.generated(count + 6)
            await served.engine.abort([one.request.id for one in sent])
            for one, result in zip(sent, await served.ended(sent, "abort(ids)"), strict=True):
                check.examine(one.request, result)

        run(scenario)

    def test_a_cancelled_request_frees_its_slot(self, run: Run) -> None:
        async def scenario(served: Served) -> None:
            sent = await served.underway()
            for one in sent:
                one.task.cancel()
            before = (await served.engine.health())["tokens_generated"]
            await served.until(
                lambda health: health["running"] == health["waiting"] == 0,
                "cancelled requests to leave",
            )
            more = (await served.engine.health())["tokens_generated"] - before
            asked = sum(one.request.sampling.max_tokens for one in sent)
            DEMANDS.that(
                more < asked / 2,
                f"{more:.0f} of {asked} tokens were sampled after the callers were cancelled",
                "a request ends when its caller is cancelled, and frees its resources",
            )
            complete(*await served.generate(GREEDY), 24, "length")

        run(scenario)

    def test_close_ends_requests_and_further_calls_are_errors(self, run: Run) -> None:
        async def scenario(served: Served) -> None:
            sent = await served.underway()
            await served.close()
            _, pending = await asyncio.wait([one.task for one in sent], timeout=self.deadline_s / 4)
            DEMANDS.that(
                not pending, f"{len(pending)} requests outlived close()", "it ends them all"
            )
            for one in sent:
                one.task.exception()  # aborted or failed, as the engine likes
            with pytest.raises((RuntimeError, AstraFlowError)):
                await asyncio.wait_for(served.generate(GREEDY), self.deadline_s / 4)

        run(scenario)


async def _counted(
    served: Served, requests: Sequence[GenerateRequest], results: Sequence[GenerateResult]
) -> None:
    """Nothing is running, and the counters match the requests and results exactly."""
    await served.until(
        lambda health: health["running"] == health["waiting"] == 0, "ended requests to leave"
    )
    health = await served.engine.health()
    for key, expected in (
        ("tokens_generated", sum(len(result.tokens) for result in results)),
        ("prompt_tokens", sum(len(request.prompt) for request in requests)),
    ):
        DEMANDS.that(
            health[key] == expected,
            f"health() reports {health[key]:.0f} {key} after {expected}",
            f"{key} counts",
        )
