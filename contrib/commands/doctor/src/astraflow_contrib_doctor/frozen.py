"""What can be measured of an engine that is never trained: there is no trainer to compare with, so it is compared
with itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from astraflow_contrib_doctor.engine_side import EngineSide, greedy
from astraflow_contrib_doctor.finding import Finding
from astraflow_contrib_doctor.measure import PROMPTS, SAMPLED_TOKENS, Prompts
from astraflow_core.types import Sampling
from astraflow_runtime.logprob_gap import gap
from astraflow_runtime.preflight.rows import Floats, MeasuredRow


@dataclass(frozen=True)
class FrozenMeasured:
    """Rows sampled at temperature 1, what ``Engine.score`` says of their tokens (``None``: it offers none), and
    greedy rows, asked for twice."""

    raw: list[MeasuredRow]
    scores: list[Floats] | None
    once: list[MeasuredRow]
    again: list[MeasuredRow]


async def measure_frozen(engine: EngineSide, prompts: Prompts, scoring: bool) -> FrozenMeasured:
    """Ask a frozen engine that has started."""
    room = engine.context_length - SAMPLED_TOKENS
    asked = [prompt[:room] for prompt in prompts[:PROMPTS]]
    sampling = Sampling(max_tokens=SAMPLED_TOKENS)
    raw = await engine.rows(asked, sampling)
    scores = await engine.scores(raw) if scoring else None
    once = await engine.rows(asked, greedy(sampling), 1)
    again = await engine.rows(asked, greedy(sampling), 1)
    return FrozenMeasured(raw, scores, once, again)


def judge_frozen(where: str, measured: FrozenMeasured, most: float) -> Iterator[Finding]:
    """Findings on the engine of the table ``where``; ``most``: the mean gap in nats that may be."""
    yield _answers(where, measured.raw)
    yield _greedy(where, measured.once, measured.again)
    if measured.scores is None:
        yield Finding(
            "ok",
            f"{where} score",
            "not measured: the engine offers none, so workflows and rewards can have it sample and no more",
        )
        return
    found = gap([row.logprobs for row in measured.raw], measured.scores)
    text = f"sampled and scored log-probs of the same tokens apart by {found}".replace(
        "(engine ", "(sampled "
    ).replace(", trainer ", ", scored ")
    if found.fits(most):
        yield Finding("ok", f"{where} score", text, figures=found.figures)
    else:
        yield Finding(
            "problem",
            f"{where} score",
            f"{text} (allowed {found.allowed(most):.2g})",
            "a judge that scores what another policy wrote would judge by wrong numbers: Engine.score must give "
            "each token its log-prob given those before it, at temperature 1; compare the server's model with the "
            "folder that `model` names",
            found.figures,
        )


def _answers(where: str, rows: Sequence[MeasuredRow]) -> Finding:
    logprobs = np.concatenate([row.logprobs for row in rows])
    wrong = int(np.count_nonzero(~np.isfinite(logprobs) | (logprobs > 1e-4)))
    figures = {"tokens": float(len(logprobs)), "wrong": float(wrong)}
    subject = f"{where} answers"
    if wrong:
        return Finding(
            "problem",
            subject,
            f"{wrong} of {len(logprobs)} log-probs are above 0 or no numbers",
            "the server must give the log-prob of each token that it samples; without them set the engine's key "
            "for that, if it has one",
            figures,
        )
    return Finding("ok", subject, f"{len(rows)} samples, {len(logprobs)} tokens", figures=figures)


def _greedy(where: str, once: Sequence[MeasuredRow], again: Sequence[MeasuredRow]) -> Finding:
    pairs = zip(once, again, strict=True)
    other = sum(not np.array_equal(row.tokens, twin.tokens) for row, twin in pairs)
    figures = {"prompts": float(len(once)), "different": float(other)}
    if other:
        return Finding(
            "warning",
            f"{where} greedy",
            f"{other} of {len(once)} prompts were continued otherwise when asked again at temperature 0",
            "verdicts of this engine are not repeatable: its kernels depend on the batch, or another process serves "
            "another model at this address",
            figures,
        )
    return Finding("ok", f"{where} greedy", "the same continuations twice", figures=figures)
