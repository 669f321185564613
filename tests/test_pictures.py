"""Each picture of the documents is what its program draws from the recorded runs beside it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from workspace import ROOT, tracked_files

pytestmark = pytest.mark.slow

RESULTS = ROOT / "bench" / "results"
PICTURES = sorted(f for f in tracked_files() if f.suffix == ".svg" and RESULTS in f.parents)
Draw = Callable[[Any, Path], object]
"""Draws runs into a folder."""


@pytest.fixture(autouse=True)
def _bench_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(ROOT)
    yield


def drawn_by(module: str) -> Draw:
    return lambda runs, folder: (folder / "curves.svg").write_text(
        importlib.import_module(module).picture(runs)
    )


def reported_by(module: str) -> Draw:
    return lambda runs, folder: importlib.import_module(module).report(runs, folder)


def recorded_by(module: str) -> Draw:
    def draw(runs: Any, folder: Path) -> None:
        from bench.support import learning

        learning.record(folder, importlib.import_module(module).TITLE, runs)

    return draw


DRAWN: dict[str, Draw] = {
    "agent_learning": recorded_by("bench.agent_learning"),
    "environment_learning": drawn_by("bench.environment_learning"),
    "gpu/learning": drawn_by("bench.on_gpu.learning"),
    "studies/autoscaling": reported_by("bench.studies.autoscaling"),
    "studies/data_policies": reported_by("bench.studies.data_policies"),
    "studies/regions": reported_by("bench.studies.regions"),
    "studies/sparsity": reported_by("bench.studies.sparsity"),
    "studies/staleness": reported_by("bench.studies.staleness"),
    "studies/synchronous": reported_by("bench.studies.synchronous"),
    "studies/text_game": drawn_by("bench.text_game"),
    "tool_learning": recorded_by("bench.tool_learning"),
}


@pytest.mark.parametrize("file", PICTURES, ids=lambda file: str(file.relative_to(RESULTS)))
def test_it_shows_the_recorded_runs(file: Path, tmp_path: Path) -> None:
    from bench.studies import records

    draw = DRAWN[str(file.parent.relative_to(RESULTS))]
    runs = records.read(file.parent)
    assert runs
    draw(runs, tmp_path)
    assert (tmp_path / "curves.svg").read_text() == file.read_text(), f"stale: {file}"
    for table in tmp_path.glob("*.md"):
        assert table.read_text() == (file.parent / table.name).read_text(), table.name
