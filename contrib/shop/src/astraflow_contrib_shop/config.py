"""The keys of the environment and of its goals."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_environments.tasks import DrawnTaskKeys


class ShopConfig(ConfigModel):
    """``use = "shop"``"""

    turns: PositiveInt = Field(15, description="Maximum actions per episode.")
    actions: Literal["text", "tools"] = Field(
        "text", description="search[…] and click[…] in the reply, or calls of tools."
    )
    page: PositiveInt = Field(10, description="Products on a page of results.")
    most_results: PositiveInt = Field(50, description="Maximum products per search.")


class GoalsConfig(DrawnTaskKeys):
    """``use = "shop_goals"``"""

    products: Annotated[int, Field(ge=10, le=100_000)] = Field(
        1000, description="Products of the catalogue."
    )
    catalogue: Annotated[int, Field(ge=0)] = Field(0, description="Number of the catalogue.")
