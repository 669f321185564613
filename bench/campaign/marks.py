"""An engine that marks what it samples and a trainer that checks the marks, so that a row that was changed, mixed or
doubled anywhere between them is found.

The last 12 bits of each float32 log-prob are a checksum of the tokens of the sequence up to that token and of the
version that sampled it; what is left of the log-prob is right to three digits. The trainer notes every batch, one JSON
object a line in ``given-POLICY.jsonl`` of the run directory: its id, its version, its rows, and how many rows are torn.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.types import Batch, ComponentContext, GenerateRequest, GenerateResult
from astraflow_testing.table import (
    TableEngine,
    TableEngineConfig,
    TableTrainer,
    TableTrainerConfig,
)
from astraflow_wire.host.disk import when_room

BITS = 12
_MARK, _SIGN = np.uint32((1 << BITS) - 1), np.uint32(1 << 31)
Tokens = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


def given_file(directory: Path, policy: str) -> Path:
    """Where the trainer of a policy notes its batches."""
    return directory / f"given-{policy}.jsonl"


def checksums(
    tokens: Tokens, sampled: npt.NDArray[np.int64], versions: Tokens
) -> npt.NDArray[np.uint32]:
    """Checksum of the sequence up to each place in ``sampled``, each with its version."""
    whole = np.ascontiguousarray(tokens, "<i4").tobytes()
    found = [
        xxhash.xxh32_intdigest(whole[: 4 * (place + 1)], seed=int(version) & 0xFFFFFFFF)
        for place, version in zip(sampled, versions, strict=True)
    ]
    return np.array(found, np.uint32) & _MARK


class MarkingEngine(TableEngine):
    """The table engine, whose log-probs carry the marks."""

    Config = TableEngineConfig

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """As of the table, marked."""
        result = await super().generate(request)
        tokens = np.concatenate([np.asarray(request.prompt, np.int32), result.tokens])
        places = np.arange(len(request.prompt), len(tokens))
        marks = checksums(tokens, places, result.versions)
        # A log-prob of zero would become a tiny positive number.
        bits = (result.logprobs.astype(np.float32).view(np.uint32) & ~_MARK) | marks | _SIGN
        return GenerateResult(
            result.id, result.tokens, bits.view(np.float32), result.versions, result.finish_reason
        )


class CheckingTrainer(TableTrainer):
    """The table trainer, which notes what it is given."""

    Config = TableTrainerConfig
    capabilities = TableTrainer.capabilities

    def __init__(self, config: TableTrainerConfig, context: ComponentContext) -> None:
        super().__init__(config, context)
        assert context.run is not None
        self._directory = context.run.directory

    def step(self, batch: Batch, algorithm: Algorithm, step: int) -> dict[str, float]:
        """Note the batch, then train on it."""
        note = {
            "batch": batch.id,
            "version": batch.version,
            "rows": rows(batch),
            "torn": torn(batch),
        }
        file = given_file(self._directory, batch.policy)
        when_room(lambda: append(file, note), file)
        return super().step(batch, algorithm, step)


def append(file: Path, note: dict[str, object]) -> None:
    """One more line."""
    with file.open("ab", buffering=0) as opened:
        opened.write((json.dumps(note) + "\n").encode())


def rows(batch: Batch) -> list[str]:
    """A name for each row, the same wherever it is served: group, trajectory and digest of its columns."""
    columns = (batch.tokens, batch.loss_mask, batch.logprobs, batch.versions)
    ends = np.cumsum(batch.lengths)
    names = []
    for row, end in enumerate(ends):
        part = slice(int(end - batch.lengths[row]), int(end))
        digest = xxhash.xxh3_64(np.float32(batch.rewards[row]).tobytes())
        for column in columns:
            digest.update(np.ascontiguousarray(column[part]).tobytes())
        names.append(f"{batch.group[row]}/{batch.trajectory[row]}/{digest.hexdigest()}")
    return names


def torn(batch: Batch) -> int:
    """The number of rows whose mark does not match their tokens and versions."""
    found = 0
    ends = np.cumsum(batch.lengths)
    for row, end in enumerate(ends):
        part = slice(int(end - batch.lengths[row]), int(end))
        places = np.flatnonzero(batch.loss_mask[part])
        expected = checksums(batch.tokens[part], places, batch.versions[part][places])
        given = batch.logprobs[part][places].astype(np.float32).view(np.uint32) & _MARK
        found += not np.array_equal(expected, given)
    return found
