"""The launcher ``kubernetes`` keeps what every launcher keeps, on a stand-in for a cluster."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from stand_in_cluster import StandInCluster

from astraflow_core.errors import PreflightError
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_testing.conformance._launchers.agents import (
    SILENCE_S,
    AgentLauncherConformance,
    host_of,
)
from astraflow_testing.conformance._launchers.host_tests import Trouble
from astraflow_testing.conformance._launchers.puppets import Puppets, Start, end_of, until
from astraflow_testing.conformance.subject import Subject, context, installed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.turns(
        "contrib/kubernetes/**/*.py",
        "libs/launching/src/**/*.py",
        "runtime/src/astraflow_runtime/launch/**/*.py",
        "testing/src/astraflow_testing/conformance/_launchers/*.py",
    ),
]

KEYS: dict[str, Any] = {
    "image": "astraflow:test",
    "silence_s": SILENCE_S,
    "agent_python": sys.executable,
    "raas": {"count": 2},
    "processes": {"raas-9": {"memory_gb": 9}, "raas-8": {"labels": ["slow"]}},
    "queue_s": 2.0,
}


@pytest.fixture(autouse=True)
def _in_order(cluster: StandInCluster) -> None:
    for node in cluster.nodes.values():
        node.down = False
    cluster.refuse = ""


def a_launcher(tmp_path: Path, **keys: Any) -> Any:
    (factory,) = installed("launcher", "kubernetes", {**KEYS, **keys}).variants.values()
    return factory(context("launcher", tmp_path))


class TestOnKubernetes(AgentLauncherConformance):
    own_tests = {"cluster": "test_processes_are_spread_over_pods"}  # noqa: RUF012

    @pytest.fixture
    def component(self, cluster: StandInCluster) -> Subject:
        return installed("launcher", "kubernetes", KEYS)

    @pytest.fixture
    def too_much(self, puppets: Puppets) -> list[Sequence[ProcessSpec]]:
        return [[puppets.spec("raas-9")], [puppets.spec("raas-8")]]

    @pytest.fixture
    def lose_host(self, cluster: StandInCluster, tmp_path: Path) -> Trouble:
        def lose(launcher: Any, name: str) -> None:
            os.killpg(cluster.pid_of(host_of(name, tmp_path)), signal.SIGKILL)

        return lose

    def test_processes_are_spread_over_pods(
        self, cluster: StandInCluster, component: Subject, start: Start, tmp_path: Path
    ) -> None:
        """Each in the pod that the placement names, on two nodes; nothing is left in the end."""
        before = set(cluster.objects)
        for factory in component.variants.values():
            launcher = factory(context("launcher", tmp_path))
            here = start(launcher, "a", "b", "c")
            nodes = {p.name: p.ask("environment", "NODE") for p in here}
            pods = {name: cluster.pod_of(host_of(name, tmp_path)) for name in "abc"}
            assert nodes == {name: pod["spec"]["nodeName"] for name, pod in pods.items()}
            assert set(nodes.values()) == {"one", "two"}
            launcher.close()
            assert set(cluster.objects) == before

    def test_roles_get_their_gpus_labels_and_spot_nodes(
        self, cluster: StandInCluster, puppets: Puppets, start: Start, tmp_path: Path
    ) -> None:
        launcher = a_launcher(
            tmp_path,
            raas={"gpus": 1, "spot": True},
            spot_labels={"spot": "true"},
            processes={"raas-1": {"gpus": 2, "labels": ["disk=fast", "kubernetes.io/hostname"]}},
        )
        here = start(launcher, "raas-0", "raas-1")
        seen = {
            p.name: (p.ask("environment", "NODE"), p.ask("environment", "CUDA_VISIBLE_DEVICES"))
            for p in here
        }
        launcher.close()
        assert seen == {"raas-0": ("cheap", "0"), "raas-1": ("one", "0,1")}

    def test_a_node_that_dies_is_a_lost_host_and_another_pod_takes_its_place(
        self, cluster: StandInCluster, puppets: Puppets, start: Start, tmp_path: Path
    ) -> None:
        before = set(cluster.objects)
        launcher = a_launcher(tmp_path)
        (lost,) = start(launcher, "a")
        lost_host = host_of("a", tmp_path)
        cluster.fail_node(str(cluster.pod_of(lost_host)["spec"]["nodeName"]))
        assert lost.is_gone(20)
        assert (end_of(launcher, "a").exit_code or 0) < 0
        until(lambda: launcher._links[lost_host].lost, "the pod's host is lost")
        assert "NodeLost" in launcher._links[lost_host].lost
        launcher.start(puppets.spec("a"))
        puppets.arrived().ask("write", "anew\n")
        assert host_of("a", tmp_path) != lost_host
        launcher.close()
        assert set(cluster.objects) == before

    def test_an_evicted_pod_lets_its_processes_end_in_order(
        self, cluster: StandInCluster, puppets: Puppets, start: Start, tmp_path: Path
    ) -> None:
        launcher = a_launcher(tmp_path)
        (process,) = start(launcher, "a")
        cluster.evict(host_of("a", tmp_path))
        assert process.is_gone(20)
        assert end_of(launcher, "a").exit_code == -signal.SIGTERM
        launcher.close()

    def test_refusals_name_the_process_and_what_the_cluster_says(
        self, cluster: StandInCluster, puppets: Puppets, tmp_path: Path
    ) -> None:
        """Pods that were already created are removed."""
        spec, before = puppets.spec("raas-0"), set(cluster.objects)

        def refusal(**keys: Any) -> str:
            launcher = a_launcher(tmp_path, **keys)
            with pytest.raises(PreflightError) as raised:
                launcher.prepare([spec])
            launcher.close()
            assert set(cluster.objects) == before
            return str(raised.value)

        assert "Insufficient nvidia.com/gpu" in refusal(raas={"gpus": 3})
        assert "raas-0 cannot run: ImagePullBackOff: missing:1" in refusal(image="missing:1")
        assert "/runs" in refusal(claim="runs")
        cluster.refuse = "exceeded quota: gpus, requested: pods=1, used: pods=9"
        assert "raas-0: Kubernetes refused it: exceeded quota: gpus" in refusal()
        cluster.refuse = ""
        assert "did not answer" in refusal(context=_nowhere(cluster))


def _nowhere(cluster: StandInCluster) -> str:
    """A context of a server that is not there."""
    config = json.loads(cluster.kubeconfig.read_text())
    config["clusters"].append({"name": "n", "cluster": {"server": "http://127.0.0.1:9"}})
    config["contexts"].append({"name": "nowhere", "context": {"cluster": "n", "user": "launcher"}})
    cluster.kubeconfig.write_text(json.dumps(config))
    return "nowhere"
