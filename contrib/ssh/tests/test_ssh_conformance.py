"""The launcher ``ssh`` keeps what every launcher keeps, on two hosts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from local_sshd import LocalSshd

from astraflow_core.protocols.launcher import Launcher, ProcessSpec
from astraflow_testing.conformance._launchers.agents import (
    SILENCE_S,
    AgentLauncherConformance,
    host_of,
)
from astraflow_testing.conformance.subject import Subject, context, installed
from astraflow_testing.runs import live_processes

pytestmark = pytest.mark.backend


def agents(launcher: Launcher, host: str) -> list[int]:
    """The processes of a host's agent, which is not the ssh client."""
    agent_id = launcher._links[host].open.args[1]  # type: ignore[attr-defined]
    return [pid for pid in live_processes(agent_id) if b"ssh" not in _command(pid)[0]]


def clients(launcher: Launcher, host: str) -> list[int]:
    agent_id = launcher._links[host].open.args[1]  # type: ignore[attr-defined]
    return [pid for pid in live_processes(agent_id) if _command(pid)[0].endswith(b"ssh")]


def _command(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


class TestSsh(AgentLauncherConformance):
    own_tests = {"cluster": "test_processes_are_spread_over_the_hosts"}  # noqa: RUF012

    @pytest.fixture
    def component(self, sshd: LocalSshd) -> Subject:
        keys = {
            "hosts": [{"name": name, "gpus": 2, "memory_gb": 8} for name in sshd.hosts],
            "command": list(sshd.command),
            "agent_python": sys.executable,
            "silence_s": SILENCE_S,
            "processes": {"raas-9": {"memory_gb": 9}},
        }
        return installed("launcher", "ssh", keys)

    @pytest.fixture
    def too_much(self, puppets) -> list[Sequence[ProcessSpec]]:  # type: ignore[no-untyped-def]
        return [[puppets.spec("raas-9")]]

    @pytest.fixture
    def lose_host(self, tmp_path: Path):  # type: ignore[no-untyped-def]
        def lose(launcher: Launcher, name: str) -> None:
            for pid in agents(launcher, host_of(name, tmp_path)):
                os.kill(pid, signal.SIGKILL)

        return lose

    @pytest.fixture
    def break_connection(self, tmp_path: Path):  # type: ignore[no-untyped-def]
        def cut(launcher: Launcher, name: str) -> None:
            (client,) = clients(launcher, host_of(name, tmp_path))
            os.kill(client, signal.SIGKILL)

        return cut

    def test_processes_are_spread_over_the_hosts(self, component, puppets, start, tmp_path) -> None:  # type: ignore[no-untyped-def]
        """Each with the address of its host, which the ssh server reports."""
        for factory in component.variants.values():
            launcher = factory(context("launcher", tmp_path))
            here = start(launcher, "a", "b", "c")
            addresses = [puppet.ask("environment", "ASTRAFLOW_HOST_ADDRESS") for puppet in here]
            launcher.close()
            assert sorted(set(addresses)) == ["127.0.0.2", "127.0.0.3"], addresses
