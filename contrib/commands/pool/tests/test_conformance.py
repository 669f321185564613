"""The commands and the launcher keep what all of their kind keep; tests/test_manifests.py looks at the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pools import served_pool

from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_runtime.cli import main
from astraflow_testing.conformance.command import CommandConformance
from astraflow_testing.conformance.launcher import LauncherConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestCommands(CommandConformance):
    @pytest.fixture(params=["start", "join", "ls", "drain", "token"])
    def command(self, request: pytest.FixtureRequest) -> str:
        return f"pool {request.param}"


@pytest.mark.slow
class TestPool(LauncherConformance):
    """Of the processes that are not in the pool; those in it are in test_runs.py."""

    own_tests = {}  # noqa: RUF012

    @pytest.fixture
    def component(self, tmp_path: Path) -> Iterator[Subject]:
        with served_pool(tmp_path) as pool:
            token = pool.token_file("ada")
            yield installed("launcher", "pool", {"url": pool.url, "token_file": str(token)})

    @pytest.fixture
    def placed(self):  # type: ignore[no-untyped-def]
        def elsewhere(spec: ProcessSpec) -> ProcessSpec:
            return replace(spec, role="trainer")

        return elsewhere


def test_the_help_of_the_first_word_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pool", "--help"]) == 0
    assert "lend this host to a pool" in capsys.readouterr().out
    assert main(["pool"]) == 2
    assert "required: COMMAND" in capsys.readouterr().err
