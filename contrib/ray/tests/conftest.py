"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
_SETTINGS = {
    "prestart_worker_first_driver": "0",  # no idle workers
    "enable_worker_prestart": "0",
    "raylet_start_wait_time_s": "120",  # a machine may be busy
    "agent_register_timeout_ms": "120000",
}
for _name, _value in _SETTINGS.items():
    os.environ[f"RAY_{_name}"] = _value


def _tell_ports_at_once(patch: pytest.MonkeyPatch) -> None:
    """A raylet aborts unless its agents have written their ports within 15 s, a number in its code, and on a busy machine they are
    not imported by then. So the ports are written for them: -1 is what agents write that serve nothing."""
    from ray._private.node import Node

    raylet: Any = importlib.import_module("ray._raylet")
    start: Any = Node.start_ray_processes

    def start_and_tell(node: Any) -> None:
        start(node)
        ports = dict.fromkeys(
            (
                raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME,
                raylet.METRICS_AGENT_PORT_NAME,
                raylet.METRICS_EXPORT_PORT_NAME,
            ),
            -1,
        )
        ports[raylet.RUNTIME_ENV_AGENT_PORT_NAME] = node._ray_params.runtime_env_agent_port
        for name, port in ports.items():
            raylet.persist_port(node._session_dir, node._node_id, name, port)

    patch.setattr(Node, "start_ray_processes", start_and_tell)


def _agent_port() -> dict[str, int]:
    """Any free one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return {"runtime_env_agent_port": int(server.getsockname()[1])}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two nodes with two cores and two made-up GPUs each; this process has joined it."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        _tell_ports_at_once(patch)
        made = _two_nodes(Cluster)
    ray.init(made.address, namespace="astraflow", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def _two_nodes(cluster: Any) -> Any:
    resources: dict[str, Any] = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 80 << 20}
    head = {**resources, **_agent_port(), "include_dashboard": False}
    made = cluster(initialize_head=True, head_node_args=head)
    made.add_node(**resources, **_agent_port())
    return made
