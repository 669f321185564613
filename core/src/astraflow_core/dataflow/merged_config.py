"""The keys of the prompt source ``merged``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from astraflow_core.config.models import ComponentTable, ConfigModel, Name


class MergedConfig(ConfigModel):
    """``[prompts] use = "merged"`` and ``[prompts.sources.NAME]`` for each."""

    sources: Annotated[dict[Name, ComponentTable], Field(min_length=1)] = Field(
        description="Name → a prompt source. Each prompt has this name as its `source`, and before its id."
    )
