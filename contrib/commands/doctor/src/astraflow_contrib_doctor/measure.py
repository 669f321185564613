"""What is measured of one policy while its engine and its trainer run."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from astraflow_contrib_doctor.engine_side import EngineSide, fetched, greedy
from astraflow_contrib_doctor.trainer_side import TrainerSide
from astraflow_core.config.models import SamplingTable
from astraflow_core.protocols.transport import Receiver
from astraflow_core.types import Sampling
from astraflow_runtime.preflight.rows import Floats, MeasuredRow
from astraflow_runtime.preflight.trainer_protocol import TensorDigest
from astraflow_wire.model_files.tensor_file import read_specs

SAMPLED_TOKENS = 16
PROMPTS = 8
LOW_TEMPERATURE = 0.5
"""Far enough from 1 to distinguish log-probs with the temperature from raw ones."""

VERSION, GARBLED, RESTORED = 1, 2, 3
"""Versions that are published: unchanged, with every tensor in reverse order, and unchanged again. 0 is what
the engine loads at its start."""

Prompts = Sequence[npt.NDArray[np.int32]]


@dataclass(frozen=True)
class MeasuredSample:
    """Rows that the engine sampled, and what the trainer says of their tokens: ``trainer`` at temperature 1
    and, where the rows were sampled at another one, ``tempered`` at that. Float32 ``[T]`` per row."""

    rows: list[MeasuredRow]
    trainer: list[Floats]
    tempered: list[Floats]

    @property
    def engine(self) -> list[Floats]:
        """As the engine reported them."""
        return [row.logprobs for row in self.rows]


@dataclass(frozen=True)
class Digests:
    """The tensors of a version, digested where the trainer exported them and where the engine reads them."""

    trainer: list[TensorDigest]
    engine: list[TensorDigest]


@dataclass(frozen=True)
class Measured:
    """All of one policy. ``truncated``: the sampling key that keeps one token → rows under it. ``before``,
    ``after``, ``garbled`` and ``restored`` are greedy, by the versions 0, 1, 2 and 3."""

    raw: MeasuredSample
    low: MeasuredSample
    as_run: MeasuredSample
    truncated: dict[str, MeasuredSample]
    scores: list[Floats] | None
    before: MeasuredSample
    after: MeasuredSample
    garbled: MeasuredSample
    restored: MeasuredSample
    digests: Digests


class PolicyMeasurement:
    """Measures one policy. ``scoring``: the engine declares that it can score."""

    def __init__(
        self, engine: EngineSide, trainer: TrainerSide, prompts: Prompts, scoring: bool
    ) -> None:
        room = engine.context_length - SAMPLED_TOKENS
        self._engine, self._trainer, self._scoring = engine, trainer, scoring
        self._prompts = [prompt[:room] for prompt in prompts[:PROMPTS]]
        self._sampling = Sampling(max_tokens=SAMPLED_TOKENS, ignore_eos=True)

    async def measure(
        self, table: SamplingTable, receiver: Receiver, deadline_s: float
    ) -> Measured:
        """Everything, around a publication without a change and one that changes every tensor."""
        raw = await self._sampled(self._sampling)
        scores = await self._engine.scores(raw.rows) if self._scoring else None
        before = await self._sampled(greedy(self._sampling))
        truncated = {
            "top_k": await self._sampled(replace(self._sampling, top_k=1)),
            "top_p": await self._sampled(replace(self._sampling, top_p=1e-6)),
            "min_p": await self._sampled(replace(self._sampling, min_p=0.999)),
        }
        low = await self._sampled(replace(self._sampling, temperature=LOW_TEMPERATURE))
        as_run = await self._sampled(
            replace(
                self._sampling,
                temperature=table.temperature,
                top_p=table.top_p,
                top_k=table.top_k,
                min_p=table.min_p,
            )
        )
        digests, after = await self._served(VERSION, receiver, deadline_s)
        _, garbled = await self._served(GARBLED, receiver, deadline_s)
        _, restored = await self._served(RESTORED, receiver, deadline_s)
        return Measured(
            raw, low, as_run, truncated, scores, before, after, garbled, restored, digests
        )

    async def _served(
        self, version: int, receiver: Receiver, deadline_s: float
    ) -> tuple[Digests, MeasuredSample]:
        """Bring a version into the engine; its digests and greedy rows."""
        digests = await self._publish(version, receiver, deadline_s)
        return digests, await self._sampled(greedy(self._sampling))

    async def _sampled(self, sampling: Sampling) -> MeasuredSample:
        repeats = 1 if sampling.temperature == 0 else 2
        rows = await self._engine.rows(self._prompts, sampling, repeats)
        trainer = await self._trainer.logprobs(rows, 1.0)
        if sampling.temperature in (0.0, 1.0):
            return MeasuredSample(rows, trainer, trainer)
        return MeasuredSample(
            rows, trainer, await self._trainer.logprobs(rows, sampling.temperature)
        )

    async def _publish(self, version: int, receiver: Receiver, deadline_s: float) -> Digests:
        announcement, exported = await self._trainer.publish(version, version == GARBLED)
        async with fetched(receiver, announcement, deadline_s) as source:
            received = _digests(source.path)
            await self._engine.load(source)
        return Digests(exported, received)


def _digests(path: Path) -> list[TensorDigest]:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        return [
            TensorDigest(
                spec.name,
                spec.dtype,
                spec.shape,
                xxhash.xxh3_128_hexdigest(view[spec.start : spec.end]),
            )
            for spec in read_specs(view)
        ]
