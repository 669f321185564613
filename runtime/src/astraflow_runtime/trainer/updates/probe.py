"""Probes in a trainer: its log-probs of a few rows under the version that it publishes."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch
from astraflow_core.types.generation import images_between
from astraflow_runtime.trainer.updates.update import Computing
from astraflow_wire.images.table import encode
from astraflow_wire.messages import Probe

log = logging.getLogger("astraflow.trainer")

ROWS = 8
TOKENS = 4096
"""The most tokens of a probe, which is sent with the announcement of its version."""
FILES = 8 << 20
"""The most bytes of the image files of a probe."""


def probe_rows(batch: Batch) -> Batch:
    """Up to :data:`ROWS` rows of a batch, the shortest ones within the limits of tokens and image files, at temperature 1;
    none if each has larger images.
    """
    chosen: list[int] = []
    files: dict[str, int] = {}
    tokens = 0
    for row in np.argsort(batch.lengths, kind="stable").tolist():
        start, end = int(batch.offsets[row]), int(batch.offsets[row + 1])
        if len(chosen) == ROWS or (chosen and tokens + end - start > TOKENS):
            break
        seen = images_between(batch.images, start, end, 0)
        with_these = files | {image.digest: len(image.data) for image in seen}
        if sum(with_these.values()) <= FILES:
            chosen.append(row)
            files, tokens = with_these, tokens + end - start
    return replace(batch.take(np.array(sorted(chosen), np.int64)), temperature=1.0)


class Prober:
    """Makes the probes of a trainer, and keeps the rows of the last one: an engine that has loaded the new weights
    moves on them as far as the trainer did."""

    def __init__(self) -> None:
        self._last: tuple[int, Batch, npt.NDArray[np.float32]] | None = None

    def probe(self, trainer: Computing, batch: Batch, version: int) -> Probe | None:
        """The trainer's log-probs of a few rows of ``batch`` under its current weights, which become ``version``; ``None`` if
        the images of each row are too large for a probe. All ranks call it together."""
        rows = probe_rows(batch)
        if not len(rows.lengths):
            log.warning(
                "version %d is not probed: the images of each row have more than %d bytes; scale them down",
                version,
                FILES,
            )
            return None
        since, moved = -1, 0.0
        if self._last is not None:
            since, before, then = self._last
            apart = np.abs(_logprobs(trainer, before) - then)[before.loss_mask]
            moved = float(apart.mean()) if len(apart) else 0.0
        logprobs = _logprobs(trainer, rows)
        self._last = version, rows, logprobs
        table, files = encode(rows.images)
        return Probe(
            lengths=rows.lengths.tolist(),
            tokens=rows.tokens.astype("<i4").tobytes(),
            sampled=rows.loss_mask.astype(np.uint8).tobytes(),
            logprobs=logprobs.astype("<f4").tobytes(),
            since=since,
            moved=moved if np.isfinite(moved) else 0.0,
            images=table,
            files=b"".join(data for buffer in files for data in buffer),
        )


def _logprobs(trainer: Computing, rows: Batch) -> npt.NDArray[np.float32]:
    return np.asarray(trainer.logprobs(rows, "current"), np.float32)
