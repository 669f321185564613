"""The keys of the data policy ``ordering``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel


class OrderingConfig(ConfigModel):
    """``data = [{ use = "ordering", … }]``"""

    by: Literal["edf", "fifo", "surprise"] = Field(
        "edf",
        description="'edf': smallest version of the trained tokens first; 'fifo': first come, first served; "
        "'surprise': largest |reward - group mean| / (group std + 1e-5) first.",
    )
