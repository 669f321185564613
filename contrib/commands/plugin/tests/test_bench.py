"""``astraflow plugin bench``: the measurements that it selects, its output, and one complete call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_plugin.benching import measured
from astraflow_contrib_plugin.benching.measured import BenchRequest, lines_of, measure
from astraflow_contrib_plugin.checking import packaging
from astraflow_contrib_plugin.checking.result import CheckResult
from astraflow_contrib_plugin.checking.target import CheckedTarget
from astraflow_runtime.cli import main

SPENT = {"us": 5.0, "against_us": 2.5, "ratio": 2.0, "low": 1.5, "high": 2.5}
FOUND = {"unit": "prompt", "against": "digits", "count": 8, "pairs": 5, "cpu": SPENT, "wall": SPENT}
HAS = {
    "astraflow-contrib-prompts": [("prompt_source", "digits"), ("prompt_source", "words")],
    "astraflow-contrib-text-games": [("environment", "key_door"), ("prompt_source", "game_levels")],
    "astraflow-contrib-rewards": [("reward", "exact"), ("reward", "numeric")],
    "astraflow-contrib-ray": [("launcher", "ray")],
}
"""Distribution → its components, without a process that looks."""
MEASURED = pytest.mark.turns(
    "contrib/commands/plugin/src/astraflow_contrib_plugin/benching/*.py",
    "contrib/commands/plugin/src/astraflow_contrib_plugin/checking/programs.py",
    "testing/src/astraflow_testing/benchmarks/*.py",
)
"""What a benchmark in a process of its own is about."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[BenchRequest]:
    """The measurements that it would make."""
    requests: list[BenchRequest] = []

    def stand_in(request: BenchRequest, *rest: Any) -> dict[str, Any]:
        requests.append(request)
        return FOUND

    def registered(target: CheckedTarget, work: Path) -> tuple[dict[str, Any], CheckResult]:
        components = [{"kind": kind, "name": name} for kind, name in HAS[target.name]]
        plugin = {"components": components, "commands": []}
        return {"plugins": [plugin]}, CheckResult("manifest", "passed", "")

    monkeypatch.setattr(measured, "measure", stand_in)
    monkeypatch.setattr(packaging, "look_at", registered)
    return requests


def test_components_are_measured_by_kind(
    asked: list[BenchRequest], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"words": ["owl"]}\n\n{"words": ["tree"]}\n')
    options = ("--component", "digits", "--keys", "{digits = 3}", "--against", "words")
    assert main(["plugin", "bench", "prompts", *options]) == 0
    assert (asked[0].kind, asked[0].use, asked[0].keys) == (
        "prompt_source",
        "digits",
        {"digits": 3},
    )
    assert (asked[0].against, asked[0].pairs) == ("words", 11)
    assert "ratio 2 (1.5 to 2.5)" in capsys.readouterr().out

    both = ["plugin", "bench", "text_games", "--json"]
    assert main([*both, "--tasks", str(tasks)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["distribution"]["name"] == "astraflow-contrib-text-games"
    assert report["components"][0]["cpu"] == SPENT
    assert asked[1].tasks == [{"words": ["owl"]}, {"words": ["tree"]}] and not asked[1].source
    assert main(both) == 0
    assert (asked[3].kind, asked[3].source) == ("environment", "game_levels")  # its own tasks
    capsys.readouterr()

    asked.clear()
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").touch()
    assert main(["plugin", "bench", "ray", "--model", str(folder)]) == 0
    assert [(each.kind, each.use, each.model) for each in asked] == [
        ("launcher", "ray", str(folder))
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("prompts", "--pairs", "2"), "--pairs 2: expected 3 to 1001"),
        (("prompts", "--deadline", "0"), "--deadline 0"),
        (("prompts", "--component", "digit"), "it has no component 'digit'"),
        (("prompts", "--against", "words"), "name it with --component"),
        (("rewards", "--component", "exact", "--keys", "3"), "expected a table"),
        (("rewards", "--component", "exact", "--keys", "{a = }"), "--keys {a = }: "),
        (("rewards", "--tasks", "nowhere.jsonl"), "No such file"),
        (("ray", "--model", "nowhere"), "--model nowhere: expected a Hugging Face folder"),
        (("nothing-of-this-name",), "no distribution 'nothing-of-this-name'"),
    ],
)
def test_mistakes_are_named(
    asked: list[BenchRequest],
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    says: str,
) -> None:
    assert main(["plugin", "bench", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not asked


def test_every_kind_has_a_benchmark() -> None:
    from astraflow_core.component import Kind
    from astraflow_testing.benchmarks.__main__ import SHIPPED, UNITS

    assert UNITS.keys() == {*map(str, Kind), "command"} == {*SHIPPED, "data_policy"}
    assert lines_of({"error": "no room"}) == ["not measured: no room"]


@MEASURED
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "use"),
    [("engine", "torch"), ("trainer", "torch"), ("launcher", "local"), ("tracker", "tensorboard"), ("command", "simulate")],
)  # fmt: skip
def test_what_runs_in_processes_of_its_own_is_measured(tmp_path: Path, kind: str, use: str) -> None:
    found = measure(BenchRequest(kind, use, {}, "", {}, 3, ""), tmp_path, None, 60)
    assert "error" not in found, found
    assert found["cpu"]["us"] > 0 and found["wall"]["ratio"] > 0
    assert found["against"] == ("doctor" if kind == "command" else use)


@pytest.mark.slow
def test_a_plugin_is_measured_and_one_that_fails_says_why(tmp_path: Path) -> None:
    request = BenchRequest("reward", "numeric", {}, "", {}, 3, "")
    found = measure(request, tmp_path, None, 60)
    assert found["against"] == "exact" and found["cpu"]["ratio"] > 0
    request = BenchRequest("environment", "key_door", {}, "", {}, 3, "")
    error = measure(request, tmp_path, None, 60)["error"]
    assert "'level' is missing" in error and "--tasks names tasks" in error
    assert "longer than 0.01 s" in measure(request, tmp_path, None, 0.01)["error"]
