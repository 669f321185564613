"""An engine under test, the tokens that it may sample, and the log-probs that it must report."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from astraflow_core.protocols.engine import Engine
from astraflow_core.types import (
    GenerateRequest,
    GenerateResult,
    Images,
    LogprobSemantics,
    Sampling,
    WeightSource,
)
from astraflow_core.types.generation import FinishReason
from astraflow_testing.conformance._checks import Demands
from astraflow_testing.conformance._models.qwen3 import Floats, log_softmax
from astraflow_testing.conformance.subject import Subject, context

DEMANDS = Demands("astraflow_core/protocols/engine")
PROMPT = (5, 9, 3, 7)
GREEDY = Sampling(24, temperature=0, ignore_eos=True)

Reference = Callable[[npt.NDArray[np.int32], npt.NDArray[np.int32], Sequence[Path]], Floats]
"""``(prompt [P], completion [T], files)`` → logits float64 ``[T, V]`` from which each token of the
completion was sampled, token ``i`` with the weights of ``files[i]``; the keys and values of what came
before are those of the weights that computed it."""


class Served:
    """A started engine, and the requests that a test makes of it."""

    def __init__(self, engine: Engine, deadline_s: float) -> None:
        self.engine = engine
        self.closed = False
        self._deadline_s = deadline_s
        self._launched: list[Request] = []

    def launch(
        self,
        sampling: Sampling,
        prompt: Sequence[int] = PROMPT,
        pinned_version: int | None = None,
        routing: bool = False,
        adapter: str = "",
        images: Images = (),
    ) -> Request:
        """Start a request of its own id; its coroutine has run to its first wait when this is awaited."""
        request = GenerateRequest(
            f"request-{len(self._launched) + 1}",
            np.array(prompt, dtype=np.int32),
            sampling,
            pinned_version=pinned_version,
            routing=routing,
            adapter=adapter,
            images=images,
        )
        self._launched.append(
            Request(request, asyncio.ensure_future(self.engine.generate(request)))
        )
        return self._launched[-1]

    async def generate(
        self, sampling: Sampling, prompt: Sequence[int] = PROMPT, pinned_version: int | None = None
    ) -> tuple[GenerateRequest, GenerateResult]:
        """A request and its result."""
        sent = self.launch(sampling, prompt, pinned_version)
        return sent.request, await sent.task

    async def underway(self, count: int = 3, tokens: int = 5) -> list[Request]:
        """Requests of which each has sampled about ``tokens`` of the many that it may."""
        started = (await self.engine.health())["tokens_generated"]
        room = self.engine.context_length - len(PROMPT) - count
        requests = [
            self.launch(Sampling(room, ignore_eos=True), (*PROMPT, *range(2, 2 + number)))
            for number in range(count)
        ]
        await self.generated(started + count * tokens)
        return requests

    async def generated(self, tokens: float) -> None:
        """Wait until the engine has sampled so many tokens in all."""
        await self.until(
            lambda health: health["tokens_generated"] >= tokens,
            f"health() to report {tokens:.0f} tokens_generated",
        )

    async def until(self, holds: Callable[[dict[str, float]], bool], what: str) -> None:
        """Wait for a state of health."""
        try:
            async with asyncio.timeout(self._deadline_s / 2):
                while not holds(await self.engine.health()):
                    await asyncio.sleep(0.001)
        except TimeoutError:
            DEMANDS.broken(
                f"waited {self._deadline_s / 2:.0f} s for {what}; it says {await self.engine.health()}",
                "requests make progress and health() shows it",
            )

    async def ended(self, requests: Sequence[Request], after: str) -> list[GenerateResult]:
        """The results of requests that have to be over now."""
        _, pending = await asyncio.wait(
            [sent.task for sent in requests], timeout=self._deadline_s / 4
        )
        DEMANDS.that(
            not pending,
            f"{len(pending)} of {len(requests)} calls of generate() had not returned after {after}",
            f"their results come back after {after}",
        )
        return [sent.task.result() for sent in requests]

    async def close(self) -> None:
        """Close the engine."""
        self.closed = True
        async with asyncio.timeout(self._deadline_s / 2):
            await self.engine.close()

    async def let_go(self) -> None:
        """Cancel the requests whose end no test asked for, and take what came of them: an engine may end them with
        an error when it is closed, which would be logged during another test."""
        for sent in self._launched:
            sent.task.cancel()
        await asyncio.gather(*(sent.task for sent in self._launched), return_exceptions=True)


@dataclass(frozen=True)
class Request:
    """A request on its way."""

    request: GenerateRequest
    task: asyncio.Future[GenerateResult]


Scenario = Callable[[Served], Awaitable[None]]


def serve(
    component: Subject, model: Path, directory: Path, deadline_s: float, scenario: Scenario
) -> None:
    """Run ``scenario`` with a started engine, which is closed afterwards; nothing outlives the deadline."""
    labels = list(component.variants)
    assert len(labels) == 1, f"inherit the suite once per configuration; the fixture gave {labels}"
    factory = component.variants[labels[0]]

    async def main() -> None:
        served = Served(factory(context("engine", directory, seed=11)), deadline_s)
        await served.engine.start(model)
        try:
            async with asyncio.timeout(deadline_s):
                await scenario(served)
        except TimeoutError:
            DEMANDS.broken(
                f"the engine did not let the test end within {deadline_s:.0f} s",
                "every call returns when its condition is met",
            )
        finally:
            try:
                if not served.closed:
                    await served.close()
            finally:
                await served.let_go()

    asyncio.run(main())


def source(file: Path, version: int) -> WeightSource:
    """``file`` as a received version."""
    return WeightSource("p", version, file, "", file.stat().st_size if file.exists() else 0, 0.0)


@dataclass(frozen=True)
class Examiner:
    """Compares results with the distributions that they had to come from. ``files`` maps a version to its
    weights."""

    reference: Reference
    semantics: LogprobSemantics
    tolerance: float
    files: Mapping[int, Path]

    def logits(self, request: GenerateRequest, result: GenerateResult) -> Floats:
        """Logits ``[T, V]`` from which the tokens were sampled."""
        files = [self.files[int(version)] for version in result.versions]
        return self.reference(request.prompt, result.tokens, files)

    def examine(self, request: GenerateRequest, result: GenerateResult) -> None:
        """Fail unless every field of the result is what the request and the semantics demand."""
        self._form(request, result)
        if not len(result.tokens):
            return
        logits, sampling = self.logits(request, result), request.sampling
        at = np.arange(len(result.tokens)), result.tokens
        allowed = allowed_tokens(logits, sampling, slack=1e-3)[at]
        first = int(np.argmin(allowed))
        DEMANDS.that(
            bool(allowed.all()),
            f"token {first} of a completion under {sampling} is {result.tokens[first]}, which temperature, top_k, "
            "top_p and min_p do not allow there",
            "temperature 0 is greedy; top_k, top_p and min_p keep only the likeliest tokens",
        )
        expected = declared_logprobs(logits, sampling, self.semantics)[at]
        error = np.abs(result.logprobs - expected)
        worst = int(np.argmax(error))
        DEMANDS.that(
            bool((error <= self.tolerance).all()),
            f"log-probs under {sampling} differ from those of an independent forward pass by up to "
            f"{error[worst]:.2g} (token {worst} of {len(error)}, version {result.versions[worst]}: "
            f"{result.logprobs[worst]:.5f} instead of {expected[worst]:.5f})",
            f"logprobs[t] is that of tokens[t] given those before it, under the weights of versions[t] and "
            f"the declared {self.semantics}",
        )

    def _form(self, request: GenerateRequest, result: GenerateResult) -> None:
        DEMANDS.that(
            result.id == request.id,
            f"the result of {request.id!r} is called {result.id!r}",
            "a result carries the id of its request",
        )
        fields = {"tokens": "int32", "logprobs": "float32", "versions": "int32"}
        count = len(result.tokens)
        for name, dtype in fields.items():
            array = getattr(result, name)
            DEMANDS.that(
                str(array.dtype) == dtype and array.shape == (count,),
                f"{name} is {array.dtype} {list(array.shape)} for {count} tokens",
                f"{name} is {dtype} [T]",
            )
        strangers = set(result.versions.tolist()) - self.files.keys()
        DEMANDS.that(
            not strangers,
            f"tokens carry the versions {sorted(strangers)}; served were {sorted(self.files)}",
            "each token carries the version that sampled it",
        )
        DEMANDS.that(
            bool((np.diff(result.versions) >= 0).all()),
            f"the versions of a completion are {result.versions.tolist()}",
            "versions never go back within a completion",
        )


def declared_logprobs(logits: Floats, sampling: Sampling, semantics: LogprobSemantics) -> Floats:
    """Log-probs ``[T, V]`` that an engine of these semantics reports; minus infinity where truncated."""
    if sampling.temperature == 0:
        return log_softmax(logits)
    scaled = logits / sampling.temperature if semantics.temperature else logits
    if semantics.truncation:
        scaled = np.where(allowed_tokens(logits, sampling, slack=0.0), scaled, -np.inf)
    return log_softmax(scaled)


def allowed_tokens(logits: Floats, sampling: Sampling, slack: float) -> npt.NDArray[np.bool_]:
    """Which tokens ``[T, V]`` may be sampled; ``slack`` widens each bound by that share of it, since an
    engine computes with fewer digits."""
    if sampling.temperature == 0:
        return np.asarray(logits >= logits.max(-1, keepdims=True) - 10 * slack)
    probs = np.exp(log_softmax(logits / sampling.temperature))
    order = np.argsort(-probs, axis=-1, kind="stable")
    ranked = np.take_along_axis(probs, order, -1)
    kept = np.ones(probs.shape, dtype=np.bool_)
    if sampling.top_k:
        bound = ranked[:, sampling.top_k - 1 : sampling.top_k]
        kept &= ranked >= bound * (1 - slack)
    mass = np.where(kept, ranked, 0.0)
    before = np.cumsum(mass, axis=-1) - mass
    if sampling.top_p < 1:
        kept &= (before < sampling.top_p * (1 + slack) * mass.sum(-1, keepdims=True)) | (
            before == 0
        )
    kept &= ranked >= sampling.min_p * ranked[:, :1] * (1 - slack)
    result = np.empty_like(kept)
    np.put_along_axis(result, order, kept, -1)
    return result


def surprise(logits: Floats, tokens: npt.NDArray[np.int32], sampling: Sampling) -> float:
    """How many standard deviations the tokens' summed log-prob lies from what sampling from the truncated
    distribution gives on average."""
    kept = allowed_tokens(logits, sampling, slack=0.0)
    logprobs = log_softmax(np.where(kept, logits / sampling.temperature, -np.inf))
    probs = np.exp(logprobs)
    finite = np.where(kept, logprobs, 0.0)
    mean = (probs * finite).sum(-1)
    variance = (probs * finite**2).sum(-1) - mean**2
    got = finite[np.arange(len(tokens)), tokens]
    return float((got - mean).sum() / np.sqrt(max(variance.sum(), 1e-12)))


def complete(
    request: GenerateRequest, result: GenerateResult, tokens: int, reason: FinishReason
) -> None:
    """Fail unless the result has so many tokens and ended for this reason."""
    DEMANDS.that(
        (len(result.tokens), result.finish_reason) == (tokens, reason),
        f"{request.sampling} returned {len(result.tokens)} tokens and finish_reason {result.finish_reason!r}",
        f"{tokens} tokens and {reason!r}",
    )


def partial(results: Sequence[GenerateResult], sampled: int) -> None:
    """Fail unless these are the results of requests that were interrupted after they had sampled so many
    tokens in all. Which of them had sampled how many is the engine's affair."""
    reasons = sorted({result.finish_reason for result in results})
    tokens = sum(len(result.tokens) for result in results)
    DEMANDS.that(
        reasons == ["abort"] and tokens >= sampled,
        f"interrupted requests that had sampled {sampled} tokens came back with {tokens} and finish_reason "
        f"{' and '.join(map(repr, reasons))}",
        "the tokens sampled so far and finish_reason 'abort'",
    )
