"""Keys of the launcher."""

from __future__ import annotations

from pydantic import Field

from astraflow_launching.keys import HostName, RemoteKeys


class RayConfig(RemoteKeys):
    """``launcher = { use = "ray", address = "10.0.0.1:6379" }``"""

    address: str | None = Field(
        default=None,
        description="Address of a running cluster, or 'auto'; default: that of RAY_ADDRESS or of the cluster on this host, "
        "else a new one on this host alone.",
    )
    hosts: tuple[HostName, ...] = Field(
        default=(), description="Names or addresses of the nodes to use; default: all."
    )
    namespace: str = Field(default="astraflow", description="Namespace of the actors.")
