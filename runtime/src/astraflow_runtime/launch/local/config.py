"""Keys of the local launcher."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt


class LocalLauncherConfig(ConfigModel):
    """``launcher = { use = "local" }``"""

    threads: Annotated[
        PositiveInt | Literal["auto"],
        Field(
            description="CPU threads of each process; auto shares the cores between engines and trainers. "
            "OMP_NUM_THREADS and its like in the environment come first."
        ),
    ] = "auto"
    restarts: Annotated[
        int,
        Field(
            ge=0,
            description="How often a killed process is restarted: a RaaS, a trainer with checkpoints, a "
            "dataflow with a journal.",
        ),
    ] = 3
