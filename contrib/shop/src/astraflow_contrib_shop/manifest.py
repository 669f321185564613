"""What this distribution provides; strings only."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environment ``shop``."""
    return [
        Component(
            name="shop",
            target="astraflow_contrib_shop.environment:Shop",
            config="astraflow_contrib_shop.config:ShopConfig",
            summary="a simulated shop after WebShop: search, click, choose options and buy",
            capabilities=frozenset({"deterministic", "tools"}),
        )
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt source ``shop_goals``."""
    return [
        Component(
            name="shop_goals",
            target="astraflow_contrib_shop.goals:ShopGoals",
            config="astraflow_contrib_shop.config:GoalsConfig",
            summary="what to buy in a catalogue that follows from a seed",
            capabilities=frozenset({"generated"}),
        )
    ]
