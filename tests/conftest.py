from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from refusals import Refusals
from workspace import ROOT

sys.path.insert(0, str(Path(__file__).parent))

from astraflow_runtime.cli import main
from astraflow_testing.fake_plugins import site as site
from astraflow_testing.runs import TABLE_RUN, EndedCommand, User


@pytest.fixture
def new_interpreters() -> None:
    """The processes of ``user`` are started as those of any other user, in a slow test too."""


@pytest.fixture
def heavy_imports() -> None:
    """The processes of ``user`` are forked from one that has imported what their runs need, such as torch."""


@pytest.fixture
def user(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[User]:
    """A user in an empty folder; processes that their commands left running are stopped. Those of slow tests are
    forked."""
    names = request.fixturenames
    if request.node.get_closest_marker("slow") and "new_interpreters" not in names:
        kind = "someone_with_imports" if "heavy_imports" in names else "someone"
        somebody = request.getfixturevalue(kind)(tmp_path)
    else:
        somebody = User(tmp_path)
    yield somebody
    somebody.close()


@pytest.fixture
def astraflow_here(
    user: User, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., EndedCommand]:
    """``user.astraflow`` in this process, for what is refused before anything is started.

    It forks for the dry call, as the command does, although a worker of pytest has threads."""
    from astraflow_runtime.raas.episodes import dry_process

    monkeypatch.setattr(dry_process, "_may_fork", lambda: True)

    def run(*arguments: str | Path) -> EndedCommand:
        monkeypatch.chdir(user.directory)
        monkeypatch.setenv("XDG_CACHE_HOME", user.environment["XDG_CACHE_HOME"])
        exit_code = main([str(argument) for argument in arguments])
        return EndedCommand(exit_code, *capfd.readouterr(), user.directory)

    return run


@pytest.fixture
def run_here(
    user: User, astraflow_here: Callable[..., EndedCommand]
) -> Callable[..., EndedCommand]:
    """``user.run_table`` likewise."""

    def run(*overrides: str, config: str = TABLE_RUN) -> EndedCommand:
        return astraflow_here(*user.table_arguments(*overrides, config=config))

    return run


@pytest.fixture
def quick() -> Callable[[str], dict[str, Any]]:
    """The JSON line of ``python -m bench NAME --quick --json``; all its fields are numbers."""

    def run(name: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "bench", name, "--quick", "--json"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        fields: dict[str, Any] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
        assert fields.pop("benchmark") == name
        assert {k: v for k, v in fields.items() if not isinstance(v, int | float)} == {}
        return fields

    return run


@pytest.fixture
def refusals() -> Iterator[Refusals]:
    """Where refusals were raised during the test."""
    noted = Refusals()
    noted.begin()
    yield noted
    noted.end()
