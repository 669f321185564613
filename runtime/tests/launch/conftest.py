from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from launch_support import Command, Table  # noqa: E402

from astraflow_runtime.forking.client import CHOICE, OWN  # noqa: E402
from astraflow_runtime.launch.results import curves  # noqa: E402
from astraflow_runtime.launch.watch import supervise  # noqa: E402
from astraflow_runtime.raas.episodes import dry_process  # noqa: E402
from astraflow_tiny_model.folder import write_tiny_model  # noqa: E402


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv(
        CHOICE, OWN
    )  # fakes are not forked: a second of imports would be for nothing
    monkeypatch.setattr(supervise, "POLL_S", 0.1)
    # A dry call forks this process, or takes a new interpreter if it has threads: `test_dry_call` shows both ways.
    monkeypatch.setenv(dry_process.VARIABLE, "none")


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves take longer than all the rest of a run of fakes; tests that look at them have a fixture of this name."""
    monkeypatch.setattr(curves, "draw_curves", lambda *told: None)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """The smallest run of fakes: a dataflow, two RaaS and a trainer; 20 steps in 0.2 s."""
    model = write_tiny_model(
        tmp_path / "model", hidden=8, layers=1, heads=2, kv_heads=1, context=1024
    )
    return {
        "run": {
            "name": "fake",
            "steps": 20,
            "max_staleness": 2,
            "directory": str(tmp_path / "runs"),
        },
        "prompts": {"use": "launch_fakes:Prompts"},
        "workflow": {"use": "launch_fakes:Plain"},
        "raas": {"replicas": 2},
        "launcher": {"use": "launch_fakes:FakeLauncher"},
        "policies": {
            "solver": {
                "model": str(model),
                "batch_sequences": 8,
                "trainer": {"use": "launch_fakes:Plain"},
                "algorithm": {"use": "launch_fakes:Plain"},
                "engine": {"use": "launch_fakes:Engine"},
                "transport": {"use": "launch_fakes:Transport"},
            }
        },
    }


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(table: Table, *flags: str) -> Command:
        started.append(Command(table, tmp_path, *flags))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()
