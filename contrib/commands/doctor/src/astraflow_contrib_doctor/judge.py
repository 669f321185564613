"""What the measurements of a policy mean: findings, each with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from astraflow_contrib_doctor.finding import Finding
from astraflow_contrib_doctor.measure import (
    LOW_TEMPERATURE,
    VERSION,
    Digests,
    Measured,
    MeasuredSample,
)
from astraflow_core.config.models import SamplingTable
from astraflow_core.types import LogprobSemantics
from astraflow_runtime.logprob_gap import FLOOR, Gap, gap, shifted
from astraflow_runtime.preflight.rows import Floats

SURE = 5.0
"""Standard errors beyond which the tokens are not from the requested distribution."""

LARGEST_RATIO = 4.0
"""Rare tokens count no more than this, or chance decides."""

_NAMES = {True: "with the sampling temperature applied", False: "raw"}
_TRUNCATION = {True: "renormalised over the tokens kept", False: "over the whole vocabulary"}


class Judge:
    """Turns what was :class:`Measured` of ``policy`` into findings. ``most``: the mean gap in nats that may
    be; none if engine and trainer are to be ``exact``."""

    def __init__(
        self,
        policy: str,
        semantics: LogprobSemantics,
        table: SamplingTable,
        most: float,
        exact: bool = False,
    ) -> None:
        self._where, self._exact = f"policies.{policy}", exact
        self._semantics, self._table, self._most = semantics, table, most

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """All of them, those that hold whatever the semantics first."""
        yield self._log_probs(measured.raw)
        if measured.scores is not None:
            yield self._scores(measured.raw, measured.scores)
        yield self._temperature(measured.low)
        yield self._chance(measured.low)
        yield self._truncation(measured.truncated["top_k"])
        for key, sampled in measured.truncated.items():
            yield self._kept(key, sampled, measured.before)
        yield self._as_run(measured.as_run)
        yield self._digests(measured.digests)
        yield self._versions(measured)
        yield self._drift(measured)
        yield self._swap(measured)

    def _finding(
        self, subject: str, good: bool, text: str, fix: str, figures: dict[str, float]
    ) -> Finding:
        subject = f"{self._where} {subject}"
        if good:
            return Finding("ok", subject, text, figures=figures)
        return Finding("problem", subject, text, fix, figures)

    def _log_probs(self, raw: MeasuredSample) -> Finding:
        found = gap(raw.engine, raw.trainer)
        if found.spread < FLOOR and found.fits(self._most):
            return Finding(
                "warning",
                f"{self._where} log-probs",
                "all tokens are equally likely under this model, so that a wrong log-prob cannot be distinguished "
                "from a right one",
                "check with a trained model, by --set policies.NAME.model=FOLDER",
                found.figures,
            )
        fix = (
            "engine and trainer do not compute the same: compare their dtypes, attention and positions, "
            "and the files of the model that each loads; training on such log-probs is off-policy from the "
            "first step"
        )
        return self._finding(
            "log-probs",
            self._agree(found),
            self._gap_message(found, raw.engine, raw.trainer),
            fix,
            found.figures,
        )

    def _scores(self, raw: MeasuredSample, scores: list[Floats]) -> Finding:
        found = gap(scores, raw.trainer)
        fix = (
            "Engine.score must give each token its log-prob given those before it, at temperature 1"
        )
        text = self._gap_message(found, scores, raw.trainer)
        return self._finding("score", self._agree(found), text, fix, found.figures)

    def _agree(self, found: Gap) -> bool:
        return found.largest == 0 if self._exact else found.fits(self._most)

    def _gap_message(self, found: Gap, engine: list[Floats], trainer: list[Floats]) -> str:
        allowed = 0.0 if self._exact else found.allowed(self._most)
        text = f"engine and trainer apart by {found} (allowed {allowed:.2g})"
        if found.fits(self._most):
            return text
        for by in (-1, 1):
            moved = shifted(engine, trainer, by)
            if moved.tokens and moved.mean < found.mean / 4 and moved.fits(self._most):
                return f"{text}; they agree if the engine's belong {by:+d} token: off by one"
        return text

    def _temperature(self, low: MeasuredSample) -> Finding:
        choices = {True: gap(low.engine, low.tempered), False: gap(low.engine, low.trainer)}
        return self._declared("temperature", self._semantics.temperature, choices, _NAMES)

    def _truncation(self, top_k: MeasuredSample) -> Finding:
        certain = [np.zeros_like(part) for part in top_k.engine]  # of one token that is kept
        choices = {True: gap(top_k.engine, certain), False: gap(top_k.engine, top_k.trainer)}
        return self._declared("truncation", self._semantics.truncation, choices, _TRUNCATION)

    def _declared(
        self, subject: str, declared: bool, choices: dict[bool, Gap], names: dict[bool, str]
    ) -> Finding:
        """Which of two meanings the log-probs have: ``choices`` are the gaps to each."""
        spread = max(found.spread for found in choices.values())
        fit = {meaning for meaning, found in choices.items() if _fits(found, spread, self._most)}
        found = choices[declared]
        subject = f"semantics of {subject}"
        if fit == {True, False}:
            return self._finding(
                subject, True, "both meanings give the same on this model", "", found.figures
            )
        if declared in fit:
            return self._finding(
                subject, True, f"{names[declared]}, as declared", "", found.figures
            )
        measured = names[not declared] if fit else f"neither; nearest with {found}"
        return self._finding(
            subject,
            False,
            f"declared: {names[declared]}; measured: {measured}",
            "the engine must declare in logprob_semantics what it reports, and report what its config asks "
            "the backend for",
            found.figures,
        )

    def _chance(self, low: MeasuredSample) -> Finding:
        """Under the distribution at a temperature T, p_1(x) / p_T(x) of a sampled x has mean 1, whatever the
        distribution (importance sampling), and cut at a bound at most 1; sampled at a higher temperature
        than T it is above."""
        ratio = np.exp(np.concatenate(low.trainer) - np.concatenate(low.tempered)).astype(
            np.float64
        )
        ratio = np.minimum(ratio, LARGEST_RATIO)
        error = float(ratio.std(ddof=1)) / np.sqrt(len(ratio))
        beyond = (float(ratio.mean()) - 1.0) / error if error > 0 else 0.0
        good = beyond <= SURE
        text = (
            f"tokens sampled at {LOW_TEMPERATURE:g} look like it"
            if good
            else f"tokens asked for at temperature {LOW_TEMPERATURE:g} are not from that distribution "
            f"({beyond:.0f} standard errors)"
        )
        fix = (
            "the engine must divide the logits by the temperature of the request before it samples"
        )
        figures = {"standard_errors": beyond, "tokens": float(len(ratio))}
        return self._finding("temperature", good, text, fix, figures)

    def _kept(self, key: str, sampled: MeasuredSample, before: MeasuredSample) -> Finding:
        """With room for one token only the likeliest may come: greedy sampling's, or one as likely."""
        repeats = len(sampled.rows) // len(before.rows)
        worst, certain = 0.0, gap(before.trainer, before.trainer)
        for index, row in enumerate(sampled.rows):
            greedy = before.rows[index // repeats]
            differs = np.flatnonzero(row.tokens != greedy.tokens)
            if len(differs):
                at = int(differs[0])
                ours, best = sampled.trainer[index][at], before.trainer[index // repeats][at]
                worst = max(worst, float(best - ours))
        good = worst <= max(certain.allowed(self._most), self._most)
        text = (
            f"{key} keeps the likeliest token"
            if good
            else f"{key} that keeps one token let another through, less likely by {worst:.2g} nats"
        )
        fix = f"the engine ignores {key}: pass it on to the backend, or leave sampling.{key} at its default"
        return self._finding(key, good, text, fix, {"nats": worst})

    def _as_run(self, sampled: MeasuredSample) -> Finding:
        table = self._table
        found = gap(sampled.engine, sampled.tempered)
        asked = f"temperature {table.temperature:g}, top_p {table.top_p:g}, top_k {table.top_k}, "
        asked += f"min_p {table.min_p:g}"
        fix = "set sampling.temperature = 1, top_p = 1, top_k = 0 and min_p = 0"
        if self._semantics.truncation and (table.top_p < 1 or table.top_k or table.min_p):
            fix += ": this engine renormalises over what is kept, a trainer counts the whole vocabulary"
        elif not self._semantics.temperature and table.temperature not in (0.0, 1.0):
            fix += ": this engine reports raw log-probs, a trainer divides by the temperature"
        good = self._agree(found)
        return self._finding(
            "log-probs as the run samples",
            good,
            f"under {asked}: apart by {found}",
            fix,
            found.figures,
        )

    def _digests(self, digests: Digests) -> Finding:
        ours = {tensor.name: tensor for tensor in digests.trainer}
        theirs = {tensor.name: tensor for tensor in digests.engine}
        different = sorted(
            name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
        )
        good = not different
        text = (
            f"{len(ours)} tensors of version {VERSION} have the same digests on both sides"
            if good
            else f"{len(different)} of {len(ours.keys() | theirs.keys())} tensors differ between the trainer's "
            f"export and what the engine was given, such as {different[0]!r}"
        )
        fix = (
            "the transport changes weights on their way: name another, and report it to its authors"
        )
        figures = {"tensors": float(len(ours)), "different": float(len(different))}
        return self._finding("weights", good, text, fix, figures)

    def _versions(self, measured: Measured) -> Finding:
        found = {
            expected: sorted({int(v) for row in sampled.rows for v in row.versions})
            for expected, sampled in ((0, measured.raw), (VERSION, measured.after))
        }
        good = all(seen == [expected] for expected, seen in found.items())
        text = (
            "tokens carry the version that sampled them"
            if good
            else f"tokens sampled by versions 0 and {VERSION} say {found[0]} and {found[VERSION]}"
        )
        fix = "the engine must stamp each token, when it is sampled, with the version that it has loaded"
        return self._finding("versions", good, text, fix, {})

    def _drift(self, measured: Measured) -> Finding:
        """A publication without a change changes nothing."""
        found = _apart(measured.before, measured.after)
        own = gap(measured.after.engine, measured.after.trainer)
        good = found.fits(self._most) and own.fits(self._most)
        text = f"log-probs before and after a publication without a change: apart by {found}"
        if found.fits(self._most) and not own.fits(self._most):
            text = f"after a publication without a change engine and trainer are apart by {own}"
        fix = (
            "the version that the engine loads is not what the trainer has: compare names, dtypes and tied "
            "tensors of the trainer's export with the model's files, and see that the engine drops its caches"
        )
        return self._finding("drift", good, text, fix, found.figures)

    def _swap(self, measured: Measured) -> Finding:
        """Other weights give other log-probs, and restoring the weights restores them."""
        other = gap(measured.garbled.engine, measured.garbled.trainer)
        back = _apart(measured.before, measured.restored)
        if gap(measured.raw.engine, measured.raw.trainer).spread < FLOOR:
            return self._finding(
                "swap", True, "no effect is visible on this model", "", other.figures
            )
        if other.fits(self._most):
            text = (
                "weights with every tensor in reverse order were loaded, and the log-probs stayed"
            )
            good = False
        else:
            text = (
                f"other weights give other log-probs (mean {other.mean:.2g}), and the first ones come back "
                f"with theirs: apart by {back}"
            )
            good = back.fits(self._most)
        fix = (
            "the engine must replace all of its weights in load_weights, copies for its kernels included, and "
            "drop caches of the version before"
        )
        return self._finding("swap", good, text, fix, back.figures)


def _apart(before: MeasuredSample, after: MeasuredSample) -> Gap:
    """The gap between greedy rows of two versions as the engine reported them."""
    ours, theirs = [], []
    for first, second in zip(before.rows, after.rows, strict=True):
        differs = np.flatnonzero(first.tokens != second.tokens)
        same = int(differs[0]) if len(differs) else len(first.tokens)
        # Where greedy sampling first chose another token, the two must have been as likely.
        ours.append(first.logprobs[: same + 1])
        theirs.append(second.logprobs[: same + 1])
    return gap(theirs, ours)


def _fits(found: Gap, spread: float, most: float) -> bool:
    """As :meth:`Gap.fits`, by the spread of either meaning: one of them may be constant."""
    return replace(found, spread=spread).fits(most)
