"""``astraflow plan --launcher``: the files of the run's launcher."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from published_models import QWEN_06B
from test_plan import CONFIG

from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_runtime.cli import main


class Generating:
    """A launcher whose files contain its arguments."""

    @staticmethod
    def generated_files(
        config: None,
        run: str,
        specs: Sequence[ProcessSpec],
        program: Sequence[str],
        arguments: Sequence[str],
        runs: str,
    ) -> dict[str, str]:
        names = [spec.name for spec in specs]
        return {"a": json.dumps([run, names, program[1:], arguments, runs]), "b": "second\n"}


@pytest.fixture
def file(tmp_path: Path, folder: Callable[[dict[str, Any]], Path], monkeypatch: Any) -> str:
    monkeypatch.chdir(tmp_path)
    model = str(folder(QWEN_06B))
    text = CONFIG.format(model=model, engine="vllm", trainer="fsdp", ranks=1, replicas=2)
    (tmp_path / "run.toml").write_text(text)
    return "run.toml"


def test_files_of_the_launcher_are_printed(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use = f"launcher.use='{__name__}:Generating'"
    assert main(["plan", file, "--launcher", "--set", use]) == 0
    first, made, second, end = capsys.readouterr().out.splitlines()
    assert (first, second, end) == ("==> a", "==> b", "second")
    assert json.loads(made) == [
        "run", ["dataflow", "trainer-solver", "raas-0", "raas-1"], ["-m", "astraflow_runtime"],
        [str(tmp_path / "run.toml"), "--set", use], str(tmp_path / "runs"),
    ]  # fmt: skip
    assert main(["plan", file, "--launcher", "--json", "--set", use]) == 0
    assert json.loads(capsys.readouterr().out)["files"]["b"] == "second\n"


def test_a_launcher_without_files_is_named(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", file, "--launcher"]) == 2
    assert "the launcher 'local' generates no files; set" in capsys.readouterr().err
