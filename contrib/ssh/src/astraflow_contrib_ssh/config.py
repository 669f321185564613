"""Keys of the launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from astraflow_core.config.models import Seconds
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
    artifact: Path | None = Field(
        default=None,
        description="Artifact of `astraflow pack` to install on each host; default: AstraFlow is already installed.",
    )
    artifact_into: str = Field(
        default=".cache/astraflow/packs",
        min_length=1,
        description="Folder of each host for artifacts, from the home folder if it is relative.",
    )
    install_s: Seconds = Field(
        default=1800.0, description="Maximum time to copy and install the artifact on a host."
    )

    @model_validator(mode="after")
    def _refuse_two_interpreters(self) -> Self:
        if self.artifact and (own := [host.name for host in self.tables if host.python]):
            raise ValueError(
                f"host {own[0]} has python, and artifact makes an interpreter on each host: delete one of the keys"
            )
        return self
