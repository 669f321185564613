"""Keys of the launcher."""

from __future__ import annotations

from pydantic import Field

from astraflow_launching.keys import HostsKeys


class SshConfig(HostsKeys):
    """``launcher = { use = "ssh", hosts = ["gpu-1", "gpu-2"] }``"""

    command: tuple[str, ...] = Field(
        default=("ssh",),
        min_length=1,
        description="ssh client and options, such as ['ssh', '-F', 'my_ssh_config', '-p', '2222'].",
    )
    agent_python: str = Field(
        default="python3",
        description="Python 3.8 or newer of each host, for the program that starts processes there.",
    )
