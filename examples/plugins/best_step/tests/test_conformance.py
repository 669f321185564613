"""``best-step`` keeps what every command keeps, and finds the step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astraflow_runtime.cli import main
from astraflow_testing.conformance.command import CommandConformance
from astraflow_testing.conformance.manifest import ManifestConformance


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_best_step.manifest"


class TestBestStep(CommandConformance):
    @pytest.fixture
    def command(self) -> str:
        return "best-step"


def test_the_first_of_the_highest_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").touch()
    assert main(["best-step", "--run", str(tmp_path)]) == 2
    assert "the run has made no step yet" in capsys.readouterr().err
    lines = [
        {"step": step, "policy": "solver", "reward": reward, "metrics": {"entropy": -reward}}
        for step, reward in enumerate((0.25, 0.75, 0.75, 0.5))
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 4, "poli'
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    assert main(["best-step", "--run", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"solver": {"step": 1, "value": 0.75}}
    assert main(["best-step", "--run", str(tmp_path), "--metric", "entropy"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["solver", "0", "-0.25"]
    assert main(["best-step", "--run", str(tmp_path), "--metric", "tokens"]) == 2
    assert "has the metric 'tokens'" in capsys.readouterr().err
