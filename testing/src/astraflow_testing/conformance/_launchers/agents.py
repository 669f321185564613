"""Shared parts of the tests of launchers whose processes are started by agents (``astraflow_launching.launcher.RemoteLauncher``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.conformance._launchers.host_tests import Trouble
from astraflow_testing.conformance.launcher import LauncherConformance

SILENCE_S = 4.0
"""The value of the key ``silence_s`` in the tests of such a launcher."""
_MARGIN_S = 10


def host_of(name: str, directory: Path) -> str:
    """The host of the process ``name``, as recorded by the launcher."""
    return str(json.loads((directory / "placement.json").read_text())[name]["host"])


class AgentLauncherConformance(LauncherConformance):
    """The suite of launchers, where agents end their processes :data:`SILENCE_S` after the launcher has gone silent."""

    @pytest.fixture
    def silence_s(self) -> float:
        """Longest time that processes outlive a launcher that has died."""
        return SILENCE_S + _MARGIN_S

    @pytest.fixture
    def break_connection(self, tmp_path: Path) -> Trouble:
        """Closes the connection to the agent on the host of a process."""

        def cut(launcher: Any, name: str) -> None:
            stream = launcher._links[host_of(name, tmp_path)]._stream
            launcher._loop.call(stream.close(), "the connection", "its end", 5)

        return cut
