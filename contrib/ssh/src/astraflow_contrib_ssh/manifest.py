"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_launchers() -> list[Component]:
    """``ssh``."""
    return [
        Component(
            name="ssh",
            target="astraflow_contrib_ssh.launcher:SshLauncher",
            config="astraflow_contrib_ssh.config:SshConfig",
            summary="starts the processes of a run on a list of hosts over ssh",
            capabilities=frozenset({"cluster"}),
        )
    ]
