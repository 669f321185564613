"""What the chaos campaign counts is found where it is."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from bench.campaign.campaign import Record, percentile
from bench.campaign.kept import recorded, together
from bench.campaign.marks import MarkingEngine, rows, torn
from bench.campaign.verdict import Verdict, of_notes, of_updates

from astraflow_core.types import (
    Batch,
    ComponentContext,
    GenerateRequest,
    GenerateResult,
    RunInfo,
    Sampling,
)
from astraflow_testing.table import TableEngine, TableEngineConfig

HERE = Path("r")
CONTEXT = ComponentContext(RunInfo("r", 0, 1, 0, ("p",), HERE), "engine", "p", 0, HERE)
PROMPT = np.array([5, 6], np.int32)


def update(step: int, version: int, again: bool = False, staleness: int = 0) -> dict[str, Any]:
    return {"step": step, "version": version, "again": again, "staleness_max": staleness}


def test_updates_that_are_missing_doubled_late_or_out_of_order_are_counted() -> None:
    sound = [update(1, 1), update(2, 2), update(2, 3, again=True), update(3, 4)]
    assert of_updates(sound) == Verdict()
    assert of_updates([update(1, 1), update(3, 2)]) == Verdict(lost=1)
    assert of_updates([update(1, 1), update(1, 2)]) == Verdict(doubled=1)
    assert of_updates([update(1, 2), update(2, 2)]) == Verdict(disordered=1)
    assert of_updates([update(1, 1, staleness=3)]) == Verdict(stale=1)


def noted(folder: Path, *notes: dict[str, Any]) -> Verdict:
    file = folder / "given.jsonl"
    file.write_text("".join(json.dumps(note) + "\n" for note in notes))
    return of_notes(file)


def note(number: int, *names: str, torn: int = 0) -> dict[str, Any]:
    return {"batch": f"solver-{number:06d}", "version": number, "rows": names, "torn": torn}


def test_rows_that_are_doubled_or_changed_are_counted(tmp_path: Path) -> None:
    first, second = note(0, "0/0/a", "0/1/b"), note(1, "1/0/a", "1/1/b")
    assert noted(tmp_path, first, second, second) == Verdict()
    assert noted(tmp_path, first, note(1, "0/1/b", "1/1/b")) == Verdict(doubled=1)
    assert noted(tmp_path, first, note(0, "0/0/a", "0/1/x")) == Verdict(torn=1)
    assert noted(tmp_path, note(0, "0/0/a", torn=1)) == Verdict(torn=1)


def test_what_power_loss_took_may_be_trained_otherwise(tmp_path: Path) -> None:
    first, second, third = (note(number, f"{number}/0/a") for number in range(3))
    power, other = {"lost_power": True}, note(1, "3/0/a")
    assert noted(tmp_path, first, second, third, power, other, note(2, "1/0/a")) == Verdict()
    assert noted(tmp_path, first, second, other) == Verdict(torn=1)
    assert noted(tmp_path, first, second, power, note(2, "1/0/a")) == Verdict(doubled=1)


def test_a_percentile_of_few_values_is_the_largest() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([float(n) for n in range(1, 201)], 0.99) == 198.0


def sampled(folder: Path, kind: type[TableEngine]) -> list[GenerateResult]:
    """Two completions of four tokens."""
    (folder / "config.json").write_text('{"vocab_size": 12, "eos_token_id": 1}')

    async def both() -> list[GenerateResult]:
        engine = kind(TableEngineConfig(), CONTEXT)
        await engine.start(folder)
        asked = [GenerateRequest(name, PROMPT, Sampling(4, ignore_eos=True)) for name in ("a", "b")]
        results = await asyncio.gather(*(engine.generate(request) for request in asked))
        await engine.close()
        return list(results)

    return asyncio.run(both())


def batch_of(results: list[GenerateResult]) -> Batch:
    count = len(results)

    def column(name: str, filler: int) -> Any:
        return np.concatenate(
            [part for each in results for part in ([filler, filler], getattr(each, name))]
        )

    tokens = np.concatenate([part for each in results for part in (PROMPT, each.tokens)])
    versions = column("versions", -1).astype(np.int32)
    return Batch(
        id="p-000000", policy="p", version=0, lengths=np.full(count, 6, np.int32), tokens=tokens,
        loss_mask=versions >= 0, logprobs=column("logprobs", 0).astype(np.float32),
        versions=versions, rewards=np.zeros(count, np.float32), group=np.zeros(count, np.int64),
        trajectory=np.arange(count), group_size=np.full(count, count, np.int32),
        group_mean=np.zeros(count, np.float32), group_std=np.zeros(count, np.float32),
    )  # fmt: skip


def test_a_mark_detects_every_change(tmp_path: Path) -> None:
    marked, plain = (sampled(tmp_path, kind) for kind in (MarkingEngine, TableEngine))
    for one, other in zip(marked, plain, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=1e-3)
    batch = batch_of(marked)
    assert torn(batch) == 0
    assert torn(batch_of(plain)) == 2
    for name, place in (("tokens", 0), ("tokens", 3), ("versions", 3), ("logprobs", 5)):
        values = getattr(batch, name).copy()
        values.view(np.int32)[place] ^= 1
        changed = replace(batch, **{name: values})
        assert torn(changed) == 1, (name, place)
        assert [a != b for a, b in zip(rows(batch), rows(changed), strict=True)] == [True, False]
    swapped = replace(batch, logprobs=np.roll(batch.logprobs, 6))
    assert torn(swapped) == 2


def test_recorded_campaigns_add_up(tmp_path: Path) -> None:
    def made(kind: str, seconds: list[float], torn: int) -> Record:
        record = Record(runs=1, verdict=Verdict(torn=torn))
        record.faults[kind] += len(seconds)
        record.recoveries[kind] += seconds
        return record

    recorded(1, lambda: made("cut", [3.0, 1.0], 2), tmp_path)
    recorded(2, lambda: made("flip", [2.0], 0), tmp_path)
    recorded(1, lambda: made("cut", [5.0, 4.0], 1), tmp_path)
    found = together(tmp_path)
    assert (found["faults"], found["torn"], found["runs"]) == (3, 1, 2)
    assert found["recovery_p50_s"] == 4.0 and found["cut_p99_s"] == 5.0
