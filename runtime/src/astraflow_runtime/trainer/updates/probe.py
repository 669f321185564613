"""Probes in a trainer: its log-probs of a few rows under the version that it publishes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch
from astraflow_runtime.trainer.updates.update import Computing
from astraflow_wire.messages import Probe

ROWS = 8
TOKENS = 4096
"""The most tokens of a probe, which is sent with the announcement of its version."""


def probe_rows(batch: Batch) -> Batch:
    """Up to :data:`ROWS` rows of a batch, the shortest ones within the limit of tokens, at
    temperature 1.
    """
    order = np.argsort(batch.lengths, kind="stable")[:ROWS]
    fits = np.cumsum(batch.lengths[order], dtype=np.int64) <= TOKENS
    chosen = order[: max(1, int(fits.sum()))]
    return replace(batch.take(np.sort(chosen)), temperature=1.0)


class Prober:
    """Makes the probes of a trainer, and keeps the rows of the last one: an engine that has loaded the new weights
    moves on them as far as the trainer did."""

    def __init__(self) -> None:
        self._last: tuple[int, Batch, npt.NDArray[np.float32]] | None = None

    def probe(self, trainer: Computing, batch: Batch, version: int) -> Probe:
        """The trainer's log-probs of a few rows of ``batch`` under its current weights, which become ``version``. All
        ranks call it together."""
        since, moved = -1, 0.0
        if self._last is not None:
            since, before, then = self._last
            apart = np.abs(_logprobs(trainer, before) - then)[before.loss_mask]
            moved = float(apart.mean()) if len(apart) else 0.0
        rows = probe_rows(batch)
        logprobs = _logprobs(trainer, rows)
        self._last = version, rows, logprobs
        return Probe(
            lengths=rows.lengths.tolist(),
            tokens=rows.tokens.astype("<i4").tobytes(),
            sampled=rows.loss_mask.astype(np.uint8).tobytes(),
            logprobs=logprobs.astype("<f4").tobytes(),
            since=since,
            moved=moved if np.isfinite(moved) else 0.0,
        )


def _logprobs(trainer: Computing, rows: Batch) -> npt.NDArray[np.float32]:
    return np.asarray(trainer.logprobs(rows, "current"), np.float32)
