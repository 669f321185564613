"""The tests of an engine that interfere with running requests: pauses, new weights, pinned versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from astraflow_core.errors import WeightsError, WrongVersion
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import ExportedTensor, Sampling
from astraflow_testing.conformance._checks import capability
from astraflow_testing.conformance._models.engine_rig import (
    DEMANDS,
    GREEDY,
    PROMPT,
    Examiner,
    Request,
    Scenario,
    Served,
    complete,
    partial,
    source,
)
from astraflow_testing.conformance._models.weights import read_tensors, write_tensors
from astraflow_testing.conformance.subject import Subject

Run = Callable[[Scenario], None]
Examine = Callable[[Served], Examiner]

SHORT = Sampling(40, ignore_eos=True)


class ControlTests:
    """Inherited by ``EngineConformance``, which defines the fixtures."""

    tolerance = 1e-4
    """Largest error of a log-prob; raise it for 16-bit weights."""

    @capability("pause.keep")
    def test_pause_keep_freezes_requests_in_place(
        self, component: Subject, run: Run, examiner: Examine
    ) -> None:
        async def scenario(served: Served) -> None:
            check, sent = examiner(served), await served.underway()
            await served.engine.pause("keep")
            _still_open(sent, "pause('keep')")
            await _stands_still(served, "keep")
            late = served.launch(SHORT)
            await served.engine.pause("keep")  # pausing a paused engine is allowed
            await _stands_still(served, "keep")
            _still_open([*sent, late], "a second pause('keep')")
            frozen = (await served.engine.health())["tokens_generated"]
            await served.engine.resume()
            await served.generated(frozen + 15)
            await served.engine.abort([one.request.id for one in sent])
            for one, result in zip(sent, await served.ended(sent, "abort(ids)"), strict=True):
                check.examine(one.request, result)
            complete(late.request, await late.task, SHORT.max_tokens, "length")

        run(scenario)

    @capability("pause.wait")
    def test_pause_wait_drains_running_requests_and_holds_new_ones(
        self, component: Subject, run: Run, examiner: Examine
    ) -> None:
        async def scenario(served: Served) -> None:
            sent = [served.launch(SHORT, (*PROMPT, n)) for n in range(2, 5)]
            await served.generated(3)
            await served.engine.pause("wait")
            late = served.launch(SHORT)
            for one, result in zip(sent, await served.ended(sent, "pause('wait')"), strict=True):
                complete(one.request, result, SHORT.max_tokens, "length")
                examiner(served).examine(one.request, result)
            await _stands_still(served, "wait")
            _still_open([late], "pause('wait')")
            await served.engine.resume()
            complete(late.request, await late.task, SHORT.max_tokens, "length")

        run(scenario)

    @capability("pause.abort")
    def test_pause_abort_returns_partial_results(
        self, component: Subject, run: Run, examiner: Examine
    ) -> None:
        async def scenario(served: Served) -> None:
            # While it is alone, what is sampled is its own.
            (first,) = await served.underway(1, tokens=5)
            sent = [first, *await served.underway(2, tokens=5)]
            await served.engine.pause("abort")
            ended = await served.ended(sent, "pause('abort')")
            partial(ended[:1], sampled=5)
            partial(ended, sampled=3 * 5)
            for one, result in zip(sent, ended, strict=True):
                examiner(served).examine(one.request, result)
            late = served.launch(SHORT)
            await _stands_still(served, "abort")
            _still_open([late], "pause('abort')")
            await served.engine.resume()
            complete(late.request, await late.task, SHORT.max_tokens, "length")

        run(scenario)

    @capability("pause.keep")
    def test_a_frozen_request_can_be_aborted(
        self, component: Subject, run: Run, examiner: Examine
    ) -> None:
        async def scenario(served: Served) -> None:
            check = examiner(served)
            (named,) = await served.underway(1, tokens=5)
            neighbours = await served.underway(2)
            await served.engine.pause("keep")
            await served.engine.abort([named.request.id])
            (ended,) = await served.ended([named], "abort(ids) while frozen")
            partial([ended], sampled=5)
            check.examine(named.request, ended)
            await _stands_still(served, "keep")
            _still_open(neighbours, "abort(ids) of another frozen request")
            frozen = (await served.engine.health())["tokens_generated"]
            await served.engine.resume()
            await served.generated(frozen + 10)
            await served.engine.abort([one.request.id for one in neighbours])
            for one, result in zip(
                neighbours, await served.ended(neighbours, "abort(ids)"), strict=True
            ):
                check.examine(one.request, result)

        run(scenario)

    @capability("pause.keep", "pause.abort")
    def test_frozen_requests_end_by_a_pause_that_aborts(
        self, component: Subject, run: Run, examiner: Examine
    ) -> None:
        async def scenario(served: Served) -> None:
            sent = await served.underway()
            await served.engine.pause("keep")
            await served.engine.pause("abort")
            ended = await served.ended(sent, "pause('abort') after pause('keep')")
            partial(ended, sampled=3 * 5)
            for one, result in zip(sent, ended, strict=True):
                examiner(served).examine(one.request, result)
            late = served.launch(SHORT)
            await _stands_still(served, "abort")
            await served.engine.resume()
            complete(late.request, await late.task, SHORT.max_tokens, "length")

        run(scenario)

    def test_a_request_that_waits_can_be_aborted(self, component: Subject, run: Run) -> None:
        async def scenario(served: Served) -> None:
            await served.engine.pause(pause_mode(component))
            late = served.launch(SHORT)
            await served.until(lambda health: health["waiting"] == 1, "a request to wait")
            await served.engine.abort([late.request.id])
            (result,) = await served.ended([late], "abort(ids) of a request that waits")
            DEMANDS.that(
                (len(result.tokens), result.finish_reason) == (0, "abort"),
                f"a request that never ran came back with {len(result.tokens)} tokens and "
                f"{result.finish_reason!r}",
                "abort ends requests with 'abort'; requests that arrive while paused wait",
            )
            await served.engine.resume()
            complete(*await served.generate(GREEDY), GREEDY.max_tokens, "length")

        run(scenario)

    @capability("weights.path")
    def test_new_weights_serve_new_requests(
        self, component: Subject, other: Path, run: Run, examiner: Examine
    ) -> None:
        async def scenario(served: Served) -> None:
            check = examiner(served)
            _, old = await served.generate(GREEDY)
            await served.engine.pause(pause_mode(component))
            await served.engine.load_weights(source(other, 1))
            await served.engine.resume()
            request, new = await served.generate(GREEDY)
            check.examine(request, new)
            version = (await served.engine.health())["version"]
            DEMANDS.that(
                set(new.versions.tolist()) == {1} and version == 1,
                f"after load_weights of version 1 tokens carry {set(new.versions.tolist())} and "
                f"health() reports version {version}",
                "each token carries the version that sampled it",
            )
            DEMANDS.that(
                new.logprobs.tolist() != old.logprobs.tolist(),
                "other weights gave the same log-probs",
                "load_weights replaces the weights",
            )

        run(scenario)

    @capability("weights.path", "weights.inflight", "pause.keep")
    def test_weights_are_swapped_with_requests_in_flight(
        self, component: Subject, other: Path, run: Run, examiner: Examine
    ) -> None:
        async def scenario(served: Served) -> None:
            check, sent = examiner(served), await served.underway()
            await served.engine.pause("keep")
            frozen = (await served.engine.health())["tokens_generated"]
            late = served.launch(SHORT)
            await served.engine.load_weights(source(other, 1))
            _still_open([*sent, late], "load_weights while frozen")
            await served.engine.resume()
            await served.generated(frozen + 30)
            complete(late.request, await late.task, SHORT.max_tokens, "length")
            await served.engine.abort([one.request.id for one in sent])
            results = await served.ended(sent, "abort(ids)")
            old = sum(int((result.versions == 0).sum()) for result in results)
            DEMANDS.that(
                old == frozen,
                f"{old} tokens carry version 0; {frozen:.0f} were sampled before the weights changed",
                "each token carries the version that sampled it",
            )
            for one, result in zip([*sent, late], [*results, late.task.result()], strict=True):
                check.examine(one.request, result)
                DEMANDS.that(
                    int(result.versions[-1]) == 1,
                    "tokens sampled after load_weights of version 1 carry version 0",
                    "each token carries the version that sampled it",
                )

        run(scenario)

    @capability("weights.path")
    def test_weights_that_do_not_fit_leave_the_old_version_serving(
        self, component: Subject, other: Path, tmp_path: Path, run: Run, examiner: Examine
    ) -> None:
        async def scenario(served: Served) -> None:
            check = examiner(served)
            for what, file in _unfit(other, tmp_path):
                await served.engine.pause(pause_mode(component))
                try:
                    await served.engine.load_weights(source(file, 1))
                except WeightsError:
                    pass
                else:
                    DEMANDS.broken(f"load_weights accepted {what}", "WeightsError")
                await served.engine.resume()
                version = (await served.engine.health())["version"]
                DEMANDS.that(
                    version == 0,
                    f"after it refused {what}, health() reports version {version}",
                    "on error the old version stays loaded",
                )
                check.examine(*await served.generate(GREEDY))

        run(scenario)

    def test_pinned_requests_get_their_version_or_an_error(
        self, component: Subject, run: Run, examiner: Examine
    ) -> None:
        async def scenario(served: Served) -> None:
            examiner(served).examine(*await served.generate(GREEDY, pinned_version=0))
            try:
                _, result = await served.generate(GREEDY, pinned_version=3)
            except WrongVersion:
                return
            DEMANDS.broken(
                f"a request pinned to version 3 got {len(result.tokens)} tokens of versions "
                f"{set(result.versions.tolist())}",
                "WrongVersion if another version is served",
            )

        run(scenario)

    @capability("weights.path", "weights.inflight", "pause.keep")
    def test_a_pinned_request_is_never_of_two_versions(
        self, component: Subject, other: Path, run: Run
    ) -> None:
        async def scenario(served: Served) -> None:
            room = served.engine.context_length - len(PROMPT)
            pinned = served.launch(Sampling(room, ignore_eos=True), pinned_version=0)
            await served.underway(1)
            await served.engine.pause("keep")
            _still_open([pinned], "pause('keep')")
            ahead = served.launch(SHORT, pinned_version=1)
            await served.engine.load_weights(source(other, 1))
            await served.engine.resume()
            try:
                (result,) = await served.ended([pinned], "the swap that it could not survive")
            except WrongVersion:
                pass
            else:
                DEMANDS.broken(
                    f"a running request pinned to version 0 ended with {result.finish_reason!r} and "
                    f"versions {sorted(set(result.versions.tolist()))} after a swap to version 1",
                    "with pinned_version every token comes from that version, else WrongVersion",
                )
            assert set((await ahead.task).versions.tolist()) == {1}

        run(scenario)

    @capability("score")
    def test_score_is_the_raw_logprob_of_what_was_sampled(
        self, component: Subject, run: Run, examiner: Examine
    ) -> None:
        async def scenario(served: Served) -> None:
            check = examiner(served)
            for sampling in (SHORT, replace(SHORT, temperature=0.7)):
                request, result = await served.generate(sampling)
                scores = await served.engine.score(np.concatenate([request.prompt, result.tokens]))
                DEMANDS.that(
                    scores.shape == (len(PROMPT) + SHORT.max_tokens,)
                    and scores.dtype == np.float32
                    and scores[0] == 0,
                    f"score() gave {scores.dtype} {list(scores.shape)}, the first being {scores[0]}",
                    "float32 [T], the first is 0",
                )
                raw = replace(result, logprobs=scores[len(PROMPT) :])
                plain = replace(request, sampling=SHORT)
                check.examine(plain, raw)
                if sampling.temperature == 1 or not check.semantics.temperature:
                    error = float(np.abs(raw.logprobs - result.logprobs).max())
                    DEMANDS.that(
                        error <= 2 * self.tolerance,
                        f"score() and generate() differ by up to {error:.2g} on the same tokens",
                        "log-probs align with tokens, and score gives the raw ones",
                    )
            alone = await served.engine.score(np.array(PROMPT[:1], dtype=np.int32))
            DEMANDS.that(
                alone.tolist() == [0.0], f"one token scores {alone.tolist()}", "the first is 0"
            )

        run(scenario)

    @capability("sleep")
    def test_sleep_and_wake_restore_the_engine(
        self, component: Subject, run: Run, examiner: Examine
    ) -> None:
        async def scenario(served: Served) -> None:
            await served.engine.pause(pause_mode(component))
            await served.engine.sleep(1)
            await served.engine.wake()
            await served.engine.resume()
            examiner(served).examine(*await served.generate(GREEDY))

        run(scenario)


def pause_mode(component: Subject) -> PauseMode:
    """A mode that the engine claims."""
    modes: tuple[PauseMode, ...] = ("wait", "keep", "abort")
    for mode in modes:
        if f"pause.{mode}" in component.capabilities:
            return mode
    DEMANDS.broken(
        "the engine declares no mode of pause()", "at least one of pause.keep, .wait, .abort"
    )


async def _stands_still(served: Served, mode: str) -> None:
    before = (await served.engine.health())["tokens_generated"]
    await asyncio.sleep(0.03)
    sampled = (await served.engine.health())["tokens_generated"] - before
    DEMANDS.that(
        sampled == 0,
        f"{sampled:.0f} tokens were sampled after pause({mode!r}) returned",
        "pause returns when no decoding step runs any longer; requests that arrive while paused wait",
    )


def _still_open(sent: list[Request], after: str) -> None:
    ended = [one for one in sent if one.task.done()]
    DEMANDS.that(
        not ended,
        f"{len(ended)} of {len(sent)} requests ended by {after} (if they had sampled all of their "
        "tokens before, the engine under test is too quick: give its config a delay)",
        "keep freezes requests in place; requests that arrive while paused wait",
    )


def _unfit(good: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Files that are not a version of the model. What fits in them is changed, so that a swap that began
    too early shows."""
    tensors = {
        name: replace(tensor, data=bytes(reversed(tensor.data)))
        for name, tensor in read_tensors(good).items()
    }
    last = max(tensors)
    whole = tensors[last]
    rows = whole.shape[0]
    cut = bytes(whole.data)[: len(whole.data) // rows * (rows - 1)]
    variants: dict[str, dict[str, ExportedTensor]] = {
        f"a version without {last}": {n: t for n, t in tensors.items() if n != last},
        "a version with one tensor too many": {**tensors, "unheard.of": replace(whole, name="x")},
        f"a version in which {last} lacks a row": {
            **tensors, last: replace(whole, shape=(rows - 1, *whole.shape[1:]), data=cut),
        },
        f"a version in which {last} holds integers": {**tensors, last: replace(whole, dtype="I32")},
    }  # fmt: skip
    for number, (what, changed) in enumerate(variants.items()):
        yield what, write_tensors(folder / f"unfit-{number}.safetensors", changed)
    torn = folder / "torn.safetensors"
    torn.write_bytes(good.read_bytes()[:-8])
    yield "a file that lacks its last bytes", torn
    yield "a file that does not exist", folder / "absent.safetensors"
