"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_launchers() -> list[Component]:
    """``kubernetes``."""
    return [
        Component(
            name="kubernetes",
            target="astraflow_contrib_kubernetes.launcher:KubernetesLauncher",
            config="astraflow_contrib_kubernetes.config:KubernetesConfig",
            summary="starts the processes of a run in pods of a Kubernetes cluster",
            capabilities=frozenset({"cluster"}),
        )
    ]
