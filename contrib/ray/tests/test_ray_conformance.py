"""The launcher ``ray`` keeps what every launcher keeps, on a cluster of two nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.protocols.launcher import Launcher, ProcessSpec
from astraflow_testing.conformance._launchers.agents import (
    SILENCE_S,
    AgentLauncherConformance,
    host_of,
)
from astraflow_testing.conformance._launchers.host_tests import Trouble
from astraflow_testing.conformance._launchers.puppets import Puppets, Start
from astraflow_testing.conformance.subject import Subject, context, installed

pytestmark = pytest.mark.backend


class TestRay(AgentLauncherConformance):
    own_tests = {"cluster": "test_processes_are_spread_over_the_nodes"}  # noqa: RUF012

    expected_failures = {  # noqa: RUF012
        "test_nothing_of_the_launcher_is_left_after_close": "ray.shutdown() keeps the log file of its driver open"
    }

    @pytest.fixture(autouse=True)
    def _ray_is_the_launchers(self, request: pytest.FixtureRequest, cluster: Any) -> Iterator[None]:
        """Only the launcher connects this process to Ray where what it leaves is looked at: what Ray keeps then does not
        depend on the workers that earlier tests have talked to."""
        if (
            getattr(request.node, "originalname", "")
            != "test_nothing_of_the_launcher_is_left_after_close"
        ):
            yield
            return
        import ray

        ray.shutdown()
        yield
        ray.shutdown()
        ray.init(cluster.address, namespace="astraflow", log_to_driver=False)

    @pytest.fixture
    def component(self, cluster: Any) -> Subject:
        keys = {
            "address": cluster.address,
            "silence_s": SILENCE_S,
            "raas": {"gpus": 1},
            "processes": {"raas-9": {"gpus": 3}},
        }
        return installed("launcher", "ray", keys)

    @pytest.fixture
    def too_much(self, puppets: Puppets) -> list[Sequence[ProcessSpec]]:
        return [[puppets.spec("raas-9")], [puppets.spec(f"raas-{index}") for index in range(5)]]

    @pytest.fixture
    def lose_host(self, cluster: Any, tmp_path: Path) -> Trouble:
        def lose(launcher: Launcher, name: str) -> None:
            import ray

            ray.kill(launcher._actors[host_of(name, tmp_path)])  # type: ignore[attr-defined]

        return lose

    def test_processes_are_spread_over_the_nodes(
        self, component: Subject, start: Start, tmp_path: Path
    ) -> None:
        """Each with a GPU of its own, which Ray has reserved."""
        import ray

        (factory,) = component.variants.values()
        launcher = factory(context("launcher", tmp_path))
        here = start(launcher, "a", "b", "c")
        assert len({host_of(name, tmp_path) for name in "abc"}) == 2
        seen = [
            (host_of(puppet.name, tmp_path), puppet.ask("environment", "CUDA_VISIBLE_DEVICES"))
            for puppet in here
        ]
        assert len(set(seen)) == 3 and all(gpu in ("0", "1") for _, gpu in seen), seen
        assert ray.available_resources()["GPU"] == 1  # type: ignore[no-untyped-call]
        launcher.close()
