"""Versions of a run: the figures are those of the run's own evaluations."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from workspace import ROOT

from astraflow_contrib_eval.versions import RunModels, WantedVersion
from astraflow_core.errors import UserError
from astraflow_runtime.cli.running import weights_of
from astraflow_runtime.cli.running.weights_of import WeightsOf
from astraflow_runtime.config.loading import load_config
from astraflow_testing.runs import TABLE_RUN, User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SETS = """
[eval]
every = 2
sets.held_out = { use = "digits", digits = 2, size = 8, split = "held_out" }
[checkpoint]
every = 2
keep = 2
"""


@dataclass
class EndedRun:
    user: User
    directory: Path

    @property
    def evaluations(self) -> dict[int, dict[str, Any]]:
        """Version → sets, as the run measured them itself."""
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        entries = [json.loads(line).get("eval") for line in lines]
        return {entry["version"]: entry["sets"] for entry in entries if entry}

    def evaluated(self, *arguments: str) -> dict[str, Any]:
        ended = self.user.astraflow("eval", *arguments, "--json", "-", deadline_s=300)
        assert ended.exit_code == 0, ended.text
        return dict(json.loads(ended.out))


def run_of(user: User, config: str, *overrides: str) -> EndedRun:
    ended = user.run_table(*overrides, config=config, deadline_s=300)
    assert ended.exit_code == 0, ended.text
    return EndedRun(user, ended.run_directory)


@pytest.fixture(scope="module")
def table(
    tmp_path_factory: pytest.TempPathFactory, someone: Callable[[Path], User]
) -> Iterator[EndedRun]:
    """A run of the table model that has learned something."""
    run = run_of(someone(tmp_path_factory.mktemp("table")), TABLE_RUN + SETS, "run.steps=6")
    yield run
    run.user.close()


def assert_alike(found: dict[str, Any], own: dict[str, Any]) -> None:
    for name, figures in own.items():
        there = found["sets"][name]
        assert {key: there[key] for key in figures} == figures


def test_the_quickstart_is_measured_as_it_measured_itself(
    tmp_path: Path, someone_with_imports: Callable[[Path], User]
) -> None:
    quickstart = (ROOT / "examples" / "quickstart.toml").read_text()
    smaller = ("run.steps=12", "eval.every=6", "policies.solver.batch_sequences=256")
    smaller += ("raas.replicas=1", "eval.sets.held_out.size=64")
    run = run_of(someone_with_imports(tmp_path), quickstart, *smaller)
    try:
        newest = max(run.evaluations)
        assert_alike(run.evaluated(), run.evaluations[newest])
        assert_alike(run.evaluated("--version", "0"), run.evaluations[0])
        found = run.evaluated("-k", "4", "--temperature", "1", "--compare", f"{run.directory}@0")
        comparison = found["comparison"]["sets"]["held_out"]
        assert comparison["prompts"] == 64 and found["comparison"]["unlike"] == {}
        assert run.user.left_running() == []
    finally:
        run.user.close()


def test_versions_and_updates_of_a_run_are_found_and_measured_alike(table: EndedRun) -> None:
    own = table.evaluations
    assert len({json.dumps(each) for each in own.values()}) > 1, "every version scored alike"
    best = max(own, key=lambda version: (own[version]["held_out"]["avg"], -version))
    name = table.directory.name
    for arguments, version in (
        ((name, "--version", "4"), 4),
        ((name, "--step", "4"), 4),
        ((f"{name}@6",), 6),
        ((f"{name}@best",), best),
        ((f"{name}@0",), 0),
    ):
        found = table.evaluated(*arguments)
        assert found["policies"]["solver"]["version"] == version
        assert_alike(found, own[version])


def test_a_model_is_measured_under_a_file_and_by_another_engine(table: EndedRun) -> None:
    engine = "astraflow_testing.table:TableEngine"
    model = table.directory / "models" / "solver"
    found = table.evaluated(
        *(str(model), "--config", "table.toml", "--engine", engine, "--engine-key", "slots=2")
    )
    assert_alike(found, table.evaluations[6])
    assert found["run"] is None and found["policies"]["solver"]["engine"] == engine


def test_a_version_that_is_not_kept_is_refused_with_those_that_are(table: EndedRun) -> None:
    ended = table.user.astraflow("eval", table.directory, "--version", "3")
    assert ended.exit_code == 2
    assert "versions that it has: 0 (initial model)" in ended.err
    assert "6 (final model)" in ended.err


def test_what_took_the_place_of_a_publisher_and_never_answers_is_named(
    table: EndedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_of, "ASK_S", 0.2)
    config = load_config(table.directory / "config.toml").config
    rows = WeightsOf(table.directory, "solver", tmp_path, 5).listed()
    ((address,),) = {tuple(row["endpoints"]) for row in rows}
    port = urlsplit(address).port
    assert port is not None
    with socket.create_server(("127.0.0.1", port)):
        models = RunModels(table.directory, config, tmp_path)
        assert models.choose("solver", WantedVersion())[0] == 6
        with pytest.raises(UserError, match=rf"{address} did not say within 0\.2 s what it has"):
            models.choose("solver", WantedVersion(3))


def test_a_best_version_that_is_the_first_is_reported(table: EndedRun, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(table.directory, copy)
    status = json.loads((copy / "status.json").read_text())
    status["best_version"] = {**(status["best_version"] or {}), "versions": {"solver": 0}}
    (copy / "status.json").write_text(json.dumps(status))
    shutil.copytree(copy / "models" / "solver", copy / "models" / "solver-best", dirs_exist_ok=True)
    ended = table.user.astraflow("eval", f"{copy}@best", "--limit", "1", deadline_s=300)
    assert ended.exit_code == 0, ended.text
    assert "copy: no version was better than the start, version 0" in ended.err


def test_a_damaged_checkpoint_is_reported(table: EndedRun, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(table.directory, copy)
    weights = next((copy / "checkpoints" / "solver" / "update-00000004").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    ended = table.user.astraflow("eval", copy, "--step", "4")
    assert ended.exit_code == 1
    assert "its trainer cannot read it" in ended.err
