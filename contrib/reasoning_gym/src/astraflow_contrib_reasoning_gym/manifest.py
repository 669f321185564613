"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompts."""
    return [
        Component(
            name="reasoning_gym",
            target="astraflow_contrib_reasoning_gym.prompts:ReasoningGym",
            config="astraflow_contrib_reasoning_gym.config:PromptsConfig",
            summary="procedural tasks of reasoning-gym: arithmetic, logic, games …",
            capabilities=frozenset({"generated"}),
        )
    ]


@hookimpl
def astraflow_rewards() -> list[Component]:
    """The reward that goes with them."""
    return [
        Component(
            name="reasoning_gym",
            target="astraflow_contrib_reasoning_gym.reward:ReasoningGymReward",
            config="astraflow_contrib_reasoning_gym.config:RewardConfig",
            summary="the score that reasoning-gym gives an answer to its own task",
            capabilities=frozenset({"blocking"}),
        )
    ]
