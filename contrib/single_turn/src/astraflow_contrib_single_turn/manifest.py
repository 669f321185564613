"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_workflows() -> list[Component]:
    """The workflow."""
    return [
        Component(
            name="single_turn",
            target="astraflow_contrib_single_turn.workflow:SingleTurn",
            config="astraflow_contrib_single_turn.config:SingleTurnConfig",
            summary="one prompt, one completion, of one policy",
        )
    ]
