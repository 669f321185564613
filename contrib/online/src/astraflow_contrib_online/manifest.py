"""What this distribution provides."""

from __future__ import annotations

from astraflow_core import Component, hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_workflows() -> list[Component]:
    """The workflow."""
    return [
        Component(
            name="online",
            target="astraflow_contrib_online.workflow:OnlineWorkflow",
            config="astraflow_contrib_online.config:OnlineConfig",
            summary="a live service opens episodes over HTTP and rewards them later",
            capabilities=frozenset({"live", "multi_turn", "multi_policy"}),
        )
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """Prompts for it."""
    return [
        Component(
            name="arrivals",
            target="astraflow_contrib_online.arrivals:ArrivalPrompts",
            config="astraflow_contrib_online.config:ArrivalsConfig",
            summary="numbers instead of prompts, for episodes that bring their own",
        )
    ]
