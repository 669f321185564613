"""The keys of the prompt source ``merged``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from astraflow_core.config.models import ConfigModel, Name


def _naming_a_source(table: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(table.get("use"), str):
        raise ValueError("name a prompt source: use = …")
    return table


Source = Annotated[dict[str, Any], AfterValidator(_naming_a_source)]


class MergedConfig(ConfigModel):
    """``[prompts] use = "merged"`` and ``[prompts.sources.NAME]`` for each."""

    sources: Annotated[dict[Name, Source], Field(min_length=1)] = Field(
        description="Name → a prompt source, `use` and its keys. Each prompt has this name as its `source`, "
        "and before its id."
    )
