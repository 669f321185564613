"""What this distribution provides; strings only."""

from __future__ import annotations

from astraflow_core.component import Component, load_attribute
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environment ``household``."""
    return [
        Component(
            name="household",
            target="astraflow_contrib_household.environment:Household",
            config="astraflow_contrib_household.config:HouseholdConfig",
            summary="household tasks in text after AlfWorld: find, clean, heat, cool and put things",
            capabilities=frozenset({"deterministic", "tools"}),
        )
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt source ``household_tasks``."""
    return [
        Component(
            name="household_tasks",
            target="astraflow_contrib_household.levels:HouseholdTasks",
            config="astraflow_contrib_household.config:TasksConfig",
            summary="rooms and tasks of household, drawn from a seed",
            capabilities=frozenset({"generated"}),
        )
    ]


@hookimpl
def astraflow_views(trajectory: object) -> list[object]:
    """What an episode looks like, on the page Trajectories."""
    views: list[object] = load_attribute("astraflow_contrib_household.views:views")(trajectory)
    return views
