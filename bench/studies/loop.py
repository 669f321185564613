"""A run in one process, the same for the same seed: real engine, trainer, loss, reward and data policies.

The dataflow's own parts decide what is rolled out, kept, ordered, dropped as stale and served; only services and
clocks are missing. Time counts in ticks. A group is sampled at once, with the newest weights, and arrives after
a delay that is drawn for it; a tick ends with an update, or with none if too few rows have arrived. So the
staleness of a row is the number of updates that were made while it was on its way, and waited.
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from astraflow_core.component import Kind
from astraflow_core.config.environments import cache_folder
from astraflow_core.config.load import LoadedConfig, component_context
from astraflow_core.config.models import ComponentTable, DataPolicyTable
from astraflow_core.seeds import derive_seed
from astraflow_core.types import Batch, Prompt, Sampling
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.dataflow.policies.pipeline import NamedPolicy, PolicyPipeline
from astraflow_runtime.dataflow.rows.rows import shares_of, trained_tokens
from astraflow_runtime.dataflow.rows.settings import StreamSettings
from astraflow_runtime.dataflow.rows.stream import PolicyStream
from astraflow_runtime.dataflow.tasks.admission import PromptAdmission
from astraflow_runtime.dataflow.tasks.cursor import PromptCursor
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_runtime.trainer.updates.update import update
from astraflow_wire.batches import decode_batch
from astraflow_wire.groups import ReceivedGroup
from bench.studies.rollouts import POLICY, Rollouts

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart.toml"
CHUNK = 8
"""Groups that are begun at once when a batch lacks rows and nothing is on its way."""
MOST_ROLLOUTS = 500_000
"""A run ends after so many, with what it has: where nearly all prompts are solved and what is solved is dropped, the
next batch may never be full."""


Published = Callable[[dict[str, Any]], None]
"""Called with the weights of a version: arrays by name."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A run: the quickstart with ``overrides`` (as of ``--set``). A group arrives after a whole number of
    ticks, drawn evenly from ``delays`` (least, most); ``under_way`` sequences are begun ahead of the next
    batch. The weights are evaluated every ``eval_every`` updates on ``held_out`` prompts."""

    overrides: tuple[str, ...]
    delays: tuple[int, int]
    under_way: int
    eval_every: int
    held_out: int


@dataclass(frozen=True, slots=True)
class Point:
    """After ``update`` updates: ``rollouts`` sequences sampled so far, held-out accuracy with greedy decoding
    and at temperature 0.6, and means over the updates since the point before: ``reward`` of all groups that
    arrived, ``staleness`` of the rows trained, and what the trainer reports."""

    update: int
    rollouts: int
    greedy: float
    sampled: float
    reward: float
    staleness: float
    metrics: dict[str, float]


async def train(setting: Setting, published: Published | None = None) -> dict[str, Any]:
    """Make the run; JSON-like: its ``points``, rows by what became of them, CPU seconds. ``published`` gets each version."""
    loaded = load_config(QUICKSTART, setting.overrides)
    began = time.process_time()
    with tempfile.TemporaryDirectory(prefix="astraflow-study-") as scratch:
        loop = _Loop(loaded, setting, Path(scratch), published)
        await loop.start()
        try:
            points = await loop.run()
        finally:
            await loop.close()
    rows = asdict(loop.stream.rows)
    seen = {str(age): count for age, count in sorted(loop.stream.staleness.seen.items())}
    return {
        "points": [asdict(point) for point in points],
        "rows": rows,
        "staleness": seen,
        "refused": dict(loop.stream.reasons) | dict(loop.admission.chain.refused),
        "cpu_s": round(time.process_time() - began, 1),
    }


class _Loop:
    """The parts of a run, and the ticks."""

    def __init__(
        self,
        loaded: LoadedConfig,
        setting: Setting,
        directory: Path,
        published: Published | None = None,
    ) -> None:
        self._published = published
        self._config, self._catalog = loaded.config, loaded.catalog
        self._setting, self._directory = setting, directory
        config, table = self._config, self._config.policies[POLICY]
        self._trainer = self._build(Kind.TRAINER, table.trainer, "trainer")
        self._algorithm = self._build(Kind.ALGORITHM, table.algorithm, "algorithm")
        self._engine = self._build(Kind.ENGINE, table.engine, "engine")
        prompts = self._build(Kind.PROMPT_SOURCE, config.prompts, "prompts")
        held_out = self._build(Kind.PROMPT_SOURCE, config.eval.sets["held_out"], "eval-held_out")
        self._held_out = [held_out[index] for index in range(setting.held_out)]
        cursor = PromptCursor(prompts, config.run.seed, config.prompts.shuffle)
        self.admission = PromptAdmission(cursor, self._chain(config.prompts.data, "prompts"))
        settings = StreamSettings(
            table.batch_sequences, 1, config.run.steps, config.run.max_staleness, 1.0
        )
        self.stream = PolicyStream(POLICY, settings, self._chain(table.data, POLICY))
        self._delays = random.Random(derive_seed(config.run.seed, "study", "delays"))
        self._flying: list[tuple[int, int, Prompt, bytes]] = []
        self._numbers, self._now, self._version = itertools.count(), 0, 0
        self._rewards: list[float] = []

    def _build(self, kind: Kind, table: ComponentTable, name: str) -> Any:
        context = component_context(self._config, self._directory, "study", POLICY, name, "")
        return self._catalog.build(kind, table, context)

    def _chain(self, tables: Sequence[DataPolicyTable], place: str) -> PolicyPipeline:
        return PolicyPipeline(
            [
                NamedPolicy(
                    table.label, self._build(Kind.DATA_POLICY, table, f"{place}-{table.label}")
                )
                for table in tables
            ]
        )

    async def start(self) -> None:
        """Load the model on both sides."""
        config, table = self._config, self._config.policies[POLICY]
        model = ModelResolver(self._catalog).resolve_model(
            table.model, config.run.seed, cache_folder()
        )
        steps = config.run.steps * table.mini_batches
        self._trainer.setup(model, steps, self._algorithm.needs)
        await self._engine.start(model)
        assert config.reward is not None
        reward = self._build(Kind.REWARD, config.reward, "reward")
        sampling = Sampling(config.sampling.max_tokens, temperature=config.sampling.temperature)
        self._rollouts = Rollouts(self._engine, reward, model, sampling, config.run.group_size)
        await self._rollouts.load(model / "model.safetensors", 0)

    async def close(self) -> None:
        """Free both sides."""
        await self._engine.close()
        self._trainer.close()

    async def run(self) -> list[Point]:
        """All updates."""
        steps, points = self._config.run.steps, [await self._point([], [])]
        ages: list[float] = []
        metrics: list[dict[str, float]] = []
        for number in range(1, steps + 1):
            batch = await self._next_batch()
            if batch is None:
                points.append(await self._point(ages, metrics))
                break
            ages.append(self._mean_age(batch))
            parts = self._config.policies[POLICY].mini_batches
            metrics.append(
                update(
                    batch,
                    self._trainer,
                    self._algorithm,
                    parts=parts,
                    seed=self._config.run.seed,
                    step=number - 1,
                )
            )
            self.stream.acknowledge(batch.id)
            await self._publish()
            if number % self._setting.eval_every == 0 or number == steps:
                points.append(await self._point(ages, metrics))
                ages, metrics = [], []
        return points

    async def _next_batch(self) -> Batch | None:
        while self._rollouts.sequences < MOST_ROLLOUTS:
            await self._begin(self._setting.under_way)
            self._land()
            served = self.stream.cut(self._version)
            if served is not None:
                batch = decode_batch(b"".join(self.stream.encode(served)))
                assert isinstance(batch, Batch)
                return batch
            if not self._flying:  # the data policies need more rows than are under way
                await self._begin(len(self.stream.buffer) + CHUNK * self._config.run.group_size)
            self._now += 1
        return None

    async def _begin(self, sequences: int) -> None:
        """Begin groups until so many sequences are on their way or buffered."""
        size = self._config.run.group_size
        missing = sequences - len(self.stream.buffer) - len(self._flying) * size
        prompts: list[Prompt] = []
        while len(prompts) * size < missing:
            offer = self.admission.take()
            if offer.admitted:
                self.admission.chain.on_admitted(offer.prompt)
                prompts.append(offer.prompt)
        if not prompts:
            return
        for prompt, body in zip(prompts, await self._rollouts.groups(prompts), strict=True):
            due = self._now + self._delays.randint(*self._setting.delays)
            heapq.heappush(self._flying, (due, next(self._numbers), prompt, body))

    def _land(self) -> None:
        """Judge what has arrived, as the dataflow does."""
        stream = self.stream
        while self._flying and self._flying[0][0] <= self._now:
            _, number, prompt, body = heapq.heappop(self._flying)
            received = ReceivedGroup(body)
            trained = trained_tokens(received)
            share = shares_of(received, trained, prompt, {POLICY: self._version}).get(POLICY)
            assert share is not None
            self._rewards.append(share.statistics.mean)
            self.admission.chain.observe(share.summary)
            first = number * self._config.run.group_size
            ruling, _ = stream.offer(received, share, number, first, self._version)
            outcome = "accepted" if ruling.refusal is None else "rejected"
            self.admission.chain.on_ended(prompt, outcome)

    async def _publish(self) -> None:
        """A tick ends with new weights."""
        self._now += 1
        self._version += 1
        file = self._directory / "weights.safetensors"
        arrays = _arrays(self._trainer.export())
        save_file(arrays, file)
        if self._published is not None:
            self._published(arrays)
        await self._rollouts.load(file, self._version)
        for chain in (self.admission.chain, self.stream.chain):
            chain.on_version(POLICY, self._version)

    async def _point(self, ages: Sequence[float], metrics: Sequence[Mapping[str, float]]) -> Point:
        rewards, self._rewards = self._rewards, []
        known = metrics[0] if metrics else ()
        kept = [name for name in known if not name.endswith(("_s", "_gb"))]
        return Point(
            self._version,
            self._rollouts.sequences,
            await self._rollouts.accuracy(self._held_out, 0.0),
            await self._rollouts.accuracy(self._held_out, 0.6),
            statistics.fmean(rewards) if rewards else 0.0,
            statistics.fmean(ages) if ages else 0.0,
            {name: statistics.fmean(each[name] for each in metrics) for name in kept},
        )

    @staticmethod
    def _mean_age(batch: Batch) -> float:
        return float((batch.version - batch.versions[batch.loss_mask]).mean())


def _arrays(tensors: Any) -> dict[str, Any]:
    """Copies of exported tensors, as NumPy arrays."""
    arrays = {}
    for tensor in tensors:
        assert tensor.dtype == "F32", "the quickstart publishes float32"
        arrays[tensor.name] = np.frombuffer(bytes(tensor.data), np.float32).reshape(tensor.shape)
    return arrays
