"""Pack, install without a network, run from the installed environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow_testing.runs import TABLE_RUN

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.turns(
        "contrib/commands/pack/src/**/*.py",
        "*/pyproject.toml",
        "libs/*/pyproject.toml",
    ),
]


def outcome(*command: str | Path, **variables: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ASTRAFLOW"))}
    done = subprocess.run(
        command, env=clean | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_a_packed_run_runs_where_only_python_is(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TABLE_RUN.replace("steps = 8", "steps = 2"))
    artifact, into = tmp_path / "run.afpack", tmp_path / "host"
    outcome(
        sys.executable, "-m", "astraflow_runtime", "pack", tmp_path / "run.toml", "--output", artifact, "--with-dependencies"
    )  # fmt: skip
    base = Path(sys.base_prefix) / "bin" / "python3"
    installed = json.loads(
        outcome(base, artifact, "--into", into, "--offline", "--role", "services")
    )
    python, config = installed["pythons"]["services"], Path(installed["run"]) / "run.toml"
    where = outcome(python, "-c", "import astraflow_runtime; print(astraflow_runtime.__file__)")
    assert where.startswith(str(into))
    cache = str(tmp_path / "cache")
    overrides = ("--set", f"run.directory='{tmp_path / 'runs'}'")
    outcome(python, "-m", "astraflow_runtime", "run", config, *overrides, ASTRAFLOW_CACHE=cache)
    (metrics,) = tmp_path.glob("runs/*/metrics.jsonl")
    assert metrics.read_text().count('"step"') == 2
