"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
_SETTINGS = {
    "prestart_worker_first_driver": "0",  # workers that nobody uses
    "enable_worker_prestart": "0",
    "raylet_start_wait_time_s": "120",  # a machine may be busy
    "agent_register_timeout_ms": "120000",
}
for _name, _value in _SETTINGS.items():
    os.environ[f"RAY_{_name}"] = _value


def _ports() -> dict[str, int]:
    """Fixed ports of a node's agents: a raylet on a busy machine gives up on agents that choose theirs."""
    names = (
        "metrics_agent_port",
        "metrics_export_port",
        "dashboard_agent_listen_port",
        "runtime_env_agent_port",
    )
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return dict(zip(names, (int(s.getsockname()[1]) for s in servers), strict=True))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two nodes with two cores and two made-up GPUs each; this process has joined it."""
    import ray
    from ray.cluster_utils import Cluster

    resources: dict[str, Any] = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 80 << 20}
    head = {**resources, **_ports(), "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    made.add_node(**resources, **_ports())
    ray.init(made.address, namespace="astraflow", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()  # type: ignore[no-untyped-call]
