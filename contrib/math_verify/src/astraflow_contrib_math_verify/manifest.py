"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_rewards() -> list[Component]:
    """The reward."""
    return [
        Component(
            name="math_verify",
            target="astraflow_contrib_math_verify.reward:MathVerify",
            config="astraflow_contrib_math_verify.config:MathVerifyConfig",
            summary="the answer equals the expected one as mathematics, by math-verify",
        )
    ]
