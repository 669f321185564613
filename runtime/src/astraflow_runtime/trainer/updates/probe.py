"""Probes in a trainer: its log-probs of a few rows under the version that it publishes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

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


def probe(trainer: Computing, batch: Batch) -> Probe:
    """The trainer's log-probs of a few rows of ``batch`` under its current weights."""
    rows = probe_rows(batch)
    logprobs = np.asarray(trainer.logprobs(rows, "current"), np.float32)
    return Probe(
        lengths=rows.lengths.tolist(),
        tokens=rows.tokens.astype("<i4").tobytes(),
        sampled=rows.loss_mask.astype(np.uint8).tobytes(),
        logprobs=logprobs.astype("<f4").tobytes(),
    )
