"""Rows that the model cannot take never reach a trainer, and never end a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from astraflow_core.config.models import RunConfig
from astraflow_core.types import Batch
from astraflow_runtime.trainer.service import TrainerService
from astraflow_runtime.trainer.updates.misfits import without_misfits
from astraflow_wire.batches import NoBatch
from astraflow_wire.messages import BatchAcknowledged, TrainerRegistered
from astraflow_wire.model_files.model_limits import ModelLimits

VOCABULARY, CONTEXT = 27, 6


def make_batch(*rows: list[int], identifier: str = "solver-000001") -> Batch:
    lengths = np.array([len(row) for row in rows], np.int32)
    total, count = int(lengths.sum()), len(rows)
    mask = np.ones(total, bool)
    mask[np.concatenate([[0], np.cumsum(lengths)[:-1]])] = False
    ones = np.ones(count, np.float32)
    return Batch(
        id=identifier, policy="solver", version=0, lengths=lengths,
        tokens=np.array([token for row in rows for token in row], np.int32), loss_mask=mask,
        logprobs=np.where(mask, -1, 0).astype(np.float32), versions=np.zeros(total, np.int32),
        rewards=np.arange(count, dtype=np.float32), group=np.arange(count) + 5,
        trajectory=np.arange(count), group_size=ones.astype(np.int32), group_mean=ones, group_std=ones,
    )  # fmt: skip


def test_rows_beyond_the_vocabulary_or_the_context_are_left_out_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = ModelLimits(VOCABULARY, CONTEXT)
    sound = make_batch([1, 2], [26, 0, 1])
    assert without_misfits(sound, limits) is sound
    mixed = make_batch([1, 2], [3, 27], [4, -1, 5], [6] * 7, [26, 0, 1])
    left = without_misfits(mixed, limits)
    assert left.rewards.tolist() == [0, 4] and left.tokens.tolist() == [1, 2, 26, 0, 1]
    assert [record.args[1:3] for record in caplog.records if record.args] == [
        (1, 6),
        (2, 7),
        (3, 8),
    ]
    for words in ("token id 27, and its model has ids from 0 to 26", "id -1", "7 tokens, and its"):
        assert words in caplog.text
    assert len(without_misfits(make_batch([3, 27]), limits)) == 0
    assert without_misfits(make_batch([3, 2**31 - 1]), ModelLimits()).rewards.tolist() == [0]


class Embedding:
    """Operations of a trainer whose table has a row for each id, and no others."""

    def __init__(self) -> None:
        self.trained: list[list[int]] = []
        self.probed = 0

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        np.zeros(VOCABULARY)[batch.tokens]
        self.trained.append(batch.tokens.tolist())
        return {"loss": 0.5}

    def probe(self, batch: Batch, version: int) -> Any:
        np.zeros(VOCABULARY)[batch.tokens]
        assert len(batch)
        self.probed += 1

    def meet(self) -> None: ...

    def set_up(self, checkpoint: Path | None) -> None:
        pass

    def finish_save(self, wait: bool) -> bool:
        return True

    def save(self, folder: Path) -> None:
        pass

    def save_model(self, folder: Path) -> None:
        pass

    def take_devices(self, ours: bool) -> None:
        pass


class Dataflow:
    """Serves batches, then ends."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches: Iterator[Batch] = iter(batches)
        self.metrics: list[dict[str, float]] = []

    def register(self, *_: Any) -> TrainerRegistered:
        return TrainerRegistered(run="r", updates=0, highest_version=-1, incarnation=1)

    def next_batch(self, *_: Any) -> Batch | NoBatch:
        return next(self.batches, NoBatch(ended=True, reason="the end"))

    def acknowledge(self, batch: str, version: int, metrics: dict[str, float]) -> BatchAcknowledged:
        self.metrics.append(metrics)
        return BatchAcknowledged(retain=[], stop=False)

    def release(self, *_: Any) -> None:
        pass

    def failed(self, error: Exception, batch: str = "") -> None:
        raise AssertionError(f"the run failed: {error}")


class Versions:
    newest = -1
    figures: ClassVar[dict[str, float]] = {}

    def publish(self, operations: Embedding, version: int, probed: Any) -> float:
        self.newest = version
        return 0.0

    def retain(self, versions: list[int]) -> None:
        pass


def test_a_run_continues_over_rows_and_whole_batches_that_its_model_cannot_take(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    settings = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT}
    (model / "config.json").write_text(json.dumps(settings))
    policy = {
        "model": str(model), "trainer": {"use": "t"}, "algorithm": {"use": "a"},
        "engine": {"use": "e"}, "transport": {"use": "x"}, "batch_sequences": 2,
    }  # fmt: skip
    config = RunConfig.model_validate(
        {"run": {"steps": 3, "max_staleness": 1, "probe_every": 1}, "prompts": {"use": "p"}, "policies": {"solver": policy}}
    )  # fmt: skip
    batches = [make_batch([1, 2], [3, 27]), make_batch([-1, 2]), make_batch([4, 5])]
    operations = Embedding()
    dataflow = Dataflow([replace(b, id=f"solver-{i}") for i, b in enumerate(batches)])
    hooks = SimpleNamespace(
        train_step=lambda run, step, batch, call: call(),
        step_ended=lambda *_: None,
        weights_published=lambda *_: None,
    )
    run: Any = SimpleNamespace(directory=tmp_path, steps=3)
    parts: Any = (config, run, "solver", operations, Versions(), dataflow, hooks)
    TrainerService(*parts).run()
    assert operations.trained == [[1, 2], [4, 5]]
    assert [metrics.get("rows_left_out", 0) for metrics in dataflow.metrics] == [1, 1, 0]
    assert [metrics.get("skipped", 0) for metrics in dataflow.metrics] == [0, 1, 0]
    assert operations.probed == 2
