"""Keys of the launcher."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from astraflow_core.config.models import Seconds
from astraflow_launching.keys import RemoteKeys

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._,:-]*$")]
Option = Annotated[str, Field(pattern=r"^--[a-z][^\x00-\x1f]*$")]


class SlurmConfig(RemoteKeys):
    """``launcher = { use = "slurm", partition = "gpu", raas = { gpus = 1 } }``"""

    partition: Word | None = Field(
        default=None, description="Partition; default: that of the cluster."
    )
    spot_partition: Word | None = Field(
        default=None,
        description="Partition for processes with spot = true, whose jobs may be preempted; default: partition.",
    )
    account: Word | None = Field(default=None, description="Account; default: that of the user.")
    time_limit: Annotated[str, Field(pattern=r"^[0-9]+([-:][0-9]+)*$")] | None = Field(
        default=None,
        description="Time limit, such as '2-00:00:00'; default: that of the partition.",
    )
    options: tuple[Option, ...] = Field(
        default=(), description="More options of sbatch, such as ['--qos=high']."
    )
    address: str | None = Field(
        default=None,
        description="Address of this host that nodes reach; default: the one from which it reaches the controller.",
    )
    agent_python: str = Field(
        default="python3",
        description="Python 3.8 or newer of each node, for the program that starts processes there.",
    )
    queue_s: Seconds = Field(
        default=3600.0, description="Maximum time to wait in the queue for the first start."
    )
