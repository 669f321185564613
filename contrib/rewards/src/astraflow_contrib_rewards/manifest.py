"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_rewards() -> list[Component]:
    """The rewards."""
    return [
        Component(
            name="exact",
            target="astraflow_contrib_rewards.exact:Exact",
            config="astraflow_contrib_rewards.config:ExactConfig",
            summary="the text equals the answer; partial credit by position if wanted",
        ),
        Component(
            name="numeric",
            target="astraflow_contrib_rewards.numeric:Numeric",
            config="astraflow_contrib_rewards.config:NumericConfig",
            summary="the last number in the text equals the answer, compared exactly",
        ),
    ]
