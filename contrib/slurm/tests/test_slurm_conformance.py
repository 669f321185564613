"""The launcher ``slurm`` keeps what every launcher keeps, on a cluster of two nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from local_slurm import LocalSlurm

from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_testing.conformance._launchers.agents import (
    SILENCE_S,
    AgentLauncherConformance,
    host_of,
)
from astraflow_testing.conformance._launchers.host_tests import Trouble
from astraflow_testing.conformance._launchers.puppets import Puppets, Start, end_of, until
from astraflow_testing.conformance.subject import Subject, context, installed
from astraflow_testing.runs import live_processes

pytestmark = [pytest.mark.backend, pytest.mark.timeout(300)]

KEYS: dict[str, Any] = {
    "silence_s": SILENCE_S,
    "agent_python": sys.executable,
    "raas": {"count": 2},
    "processes": {"raas-9": {"memory_gb": 9}, "raas-8": {"labels": ["slow"]}},
}


def _queue() -> str:
    command = ["squeue", "--noheader", "--format=%i %T"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


class OnSlurm(AgentLauncherConformance):
    @pytest.fixture
    def lose_host(self, tmp_path: Path) -> Trouble:
        def lose(launcher: Any, name: str) -> None:
            agent_id = launcher._nodes[host_of(name, tmp_path)].agent_id
            for pid in live_processes(f"{agent_id}.json"):
                if b"srun" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

        return lose

    def test_processes_are_spread_over_the_nodes(
        self, component: Subject, start: Start, tmp_path: Path
    ) -> None:
        """Each on the node that Slurm says, and the queue is as before in the end."""
        before = _queue()
        for factory in component.variants.values():
            launcher = factory(context("launcher", tmp_path))
            here = start(launcher, "a", "b", "c")
            nodes = {p.name: p.ask("environment", "SLURMD_NODENAME") for p in here}
            assert {name: host_of(name, tmp_path) for name in "abc"} == nodes
            assert set(nodes.values()) == {"one", "two"}
            launcher.close()
            assert _queue() == before


class TestSubmitted(OnSlurm):
    """From a login node: the launcher submits a job."""

    own_tests = {"cluster": "test_processes_are_spread_over_the_nodes"}  # noqa: RUF012

    @pytest.fixture
    def component(self, slurm: LocalSlurm) -> Subject:
        return installed("launcher", "slurm", KEYS)

    @pytest.fixture
    def too_much(self, puppets: Puppets) -> list[Sequence[ProcessSpec]]:
        return [[puppets.spec("raas-9")], [puppets.spec("raas-8")]]

    def test_gpus_are_those_that_slurm_gives(
        self, slurm: LocalSlurm, puppets: Puppets, start: Start, tmp_path: Path
    ) -> None:
        """Roles with other needs are components of one heterogeneous job."""
        keys = {
            **KEYS,
            "raas": {"gpus": 1},
            "processes": {"raas-1": {"gpus": 2, "labels": ["two"]}},
        }
        (factory,) = installed("launcher", "slurm", keys).variants.values()
        launcher = factory(context("launcher", tmp_path))
        here = start(launcher, "raas-0", "raas-1")
        seen = {
            puppet.name: (
                puppet.ask("environment", "SLURMD_NODENAME"),
                puppet.ask("environment", "CUDA_VISIBLE_DEVICES"),
            )
            for puppet in here
        }
        launcher.close()
        assert seen == {"raas-0": ("one", "0"), "raas-1": ("two", "0,1")}

    def test_a_job_that_slurm_ends_is_a_lost_host_and_another_takes_its_place(
        self, slurm: LocalSlurm, puppets: Puppets, start: Start, tmp_path: Path
    ) -> None:
        (factory,) = installed("launcher", "slurm", KEYS).variants.values()
        launcher: Any = factory(context("launcher", tmp_path))
        (lost,) = start(launcher, "a")
        (job,) = launcher._jobs
        subprocess.run(["scancel", job], timeout=30, check=True)
        assert lost.is_gone(20)
        assert (end_of(launcher, "a").exit_code or 0) < 0
        until(lambda: launcher._links[host_of("a", tmp_path)].lost, "the host of the job is lost")
        launcher.start(puppets.spec("a"))
        puppets.arrived().ask("write", "anew\n")
        assert launcher._jobs[0] == job and len(launcher._jobs) == 2
        launcher.close()
        assert _queue() == ""


class TestAllocated(OnSlurm):
    """Inside an allocation of two nodes: the launcher starts steps there."""

    own_tests = {"cluster": "test_processes_are_spread_over_the_nodes"}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _allocation(self, slurm: LocalSlurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        command = [
            "salloc",
            "--no-shell",
            "--nodes=2",
            "--cpus-per-task=2",
            "--job-name=allocation",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        job = next(word for word in done.stderr.split() if word.isdigit())
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("SLURM_JOB_NODELIST", "one,two")
        monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "2(x2)")
        yield
        subprocess.run(["scancel", job], timeout=30, check=True)

    @pytest.fixture
    def component(self, slurm: LocalSlurm) -> Subject:
        return installed("launcher", "slurm", KEYS)

    @pytest.fixture
    def too_much(self, puppets: Puppets) -> list[Sequence[ProcessSpec]]:
        return [[puppets.spec("raas-8")]]
