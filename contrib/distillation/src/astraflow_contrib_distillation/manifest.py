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
            name="taught",
            target="astraflow_contrib_distillation.workflow:Taught",
            config="astraflow_contrib_distillation.config:TaughtConfig",
            summary="another workflow, and the log-probs that a teacher gives what its policy sampled",
        )
    ]
