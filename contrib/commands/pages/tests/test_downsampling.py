"""Downsampled curves draw the same pixels, and columns have what the reader of the runtime has."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_runs import step_line, write_run

from astraflow_contrib_pages.metrics import metric_columns
from astraflow_contrib_pages.metrics.downsampling import min_max
from astraflow_contrib_pages.metrics.metric_columns import MetricColumns
from astraflow_runtime.launch.results.metrics import read_metrics

FINITE = st.floats(-1e9, 1e9, allow_nan=False)


@given(st.lists(FINITE, min_size=1, max_size=400), st.integers(1, 40))
def test_every_bucket_keeps_its_extremes(values: list[float], buckets: int) -> None:
    y = np.array(values)
    x = np.arange(len(y), dtype=float)
    thin_x, thin_y = min_max(x, y, buckets)
    assert len(thin_x) <= 2 * buckets + 2
    assert (np.diff(thin_x) > 0).all()
    assert (y[thin_x.astype(int)] == thin_y).all(), "a point that was not there"
    assert thin_x[0] == 0 and thin_x[-1] == len(y) - 1
    if len(y) > 2 * buckets + 2:
        size = -(-len(y) // buckets)
        for start in range(0, len(y), size):
            kept = thin_y[(thin_x >= start) & (thin_x < start + size)]
            part = y[start : start + size]
            assert kept.min() == part.min() and kept.max() == part.max()
    else:
        assert (thin_y == y).all()


def test_a_spike_among_a_hundred_thousand_steps_is_seen() -> None:
    y = np.zeros(100_000)
    y[61_234] = 5.0
    thin_x, thin_y = min_max(np.arange(100_000.0), y, 600)
    assert len(thin_x) <= 1202 and thin_x[thin_y.argmax()] == 61_234 and thin_y.max() == 5.0


def figures_of(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """What the reader of the runtime finds."""
    found: dict[str, list[tuple[int, float]]] = {}
    for step in read_metrics(directory).steps:
        for name, value in step.figures.items():
            found.setdefault(name, []).append((step.step, value))
    return found


def columns_of(columns: MetricColumns) -> dict[str, list[tuple[int, float]]]:
    own = {name for name in columns.names() if name != "tokens_per_s" and ":" not in name}
    drawn = columns.curves(own, 10**6, -np.inf, np.inf)
    return {n: [(int(x), y) for x, y in zip(*c, strict=True)] for n, c in drawn["solver"].items()}


def test_columns_have_what_the_runtime_reads(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", 5)
    columns = MetricColumns(run)
    columns.update()
    with (run / "metrics.jsonl").open("ab") as file:
        for line in (step_line(3, reward=99.0), step_line(6, odd=True)):
            file.write(json.dumps(line).encode() + b"\n")
        file.write(b'{"policy": "solver", "step": "7", "time": 1}\n[]\nnothing\n')
        file.write(json.dumps(step_line(7)).encode()[:40])
    columns.update()
    assert columns_of(columns) == figures_of(run)
    assert columns.damaged == len(read_metrics(run).damaged) == 3
    assert columns.steps == 6
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(json.dumps(step_line(7)).encode()[40:] + b"\n\0\0\0\0" + b"{}\n")
    columns.update()
    assert columns_of(columns) == figures_of(run) and columns.steps == 7


def test_a_file_that_was_cut_and_written_on_is_read_anew(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", 9)
    columns = MetricColumns(run)
    columns.update()
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    others = [json.dumps(step_line(n, reward=7.0, more=n)).encode() + b"\n" for n in range(6, 14)]
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:5] + others))
    columns.update()
    assert columns_of(columns) == figures_of(run) and columns.steps == 13


def test_speed_is_tokens_over_time(tmp_path: Path) -> None:
    columns = MetricColumns(write_run(tmp_path, "a", 30))
    columns.update()
    _, speed = columns.curves(["tokens_per_s"], 100, 0, 100)["solver"]["tokens_per_s"]
    assert speed == pytest.approx([1000.0] * 29, rel=1e-3)


def test_a_table_of_runs_has_a_sample_of_each_and_reads_none_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path, "one", 30, state="crashed")
    monkeypatch.setattr(metric_columns, "MUCH", 0)
    monkeypatch.setattr(metric_columns, "_FIRST_S", 0.0)
    columns = MetricColumns(folder)
    assert columns.look(whole=False) == 0 and columns.steps == 30
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(step_line(31)) + "\n")
    assert columns.look(whole=False) == 0 and columns.steps == 31 and columns.share == 0
    assert columns._reader is None
    columns.look()
    reader = columns._reader
    if reader is not None:  # it may be done already
        reader.join()
    assert columns.look(whole=False) > 0 and columns.share == 1 and columns.steps == 31
