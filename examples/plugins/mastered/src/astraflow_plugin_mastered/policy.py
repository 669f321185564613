"""Rests a prompt that every sample solves, group after group; now and then it is tried again."""

from __future__ import annotations

from random import Random
from typing import Annotated, Any

from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.types import ComponentContext, GroupSummary, Prompt, Verdict


class MasteredConfig(ConfigModel):
    """``data = [{ use = "mastered", … }]``"""

    after: Annotated[int, Field(ge=1)] = Field(
        1, description="Groups in a row that must be solved whole before the prompt rests."
    )
    reward: float = Field(1.0, description="A sample with at least this reward counts as solved.")
    revisit: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="Chance that a resting prompt is rolled out anyway."
    )
    policy: str | None = Field(None, description="Policy whose samples count; default: any.")


class Mastered:
    """Decides on admission by the outcomes of earlier groups of the same prompt."""

    def __init__(self, config: MasteredConfig, context: ComponentContext) -> None:
        self._config = config
        self._random = Random(context.seed)
        self._streaks: dict[str, int] = {}
        self._rested = 0

    def admit(self, prompt: Prompt) -> bool:
        """Every prompt but those that rest, and one of these by chance."""
        resting = self._streaks.get(prompt.id, 0) >= self._config.after
        if not resting or self._random.random() < self._config.revisit:
            return True
        self._rested += 1
        return False

    def accept(self, group: GroupSummary) -> Verdict:
        """Learn from the group; all are kept."""
        if self._config.policy in (None, group.policy):
            if group.rewards.min() >= self._config.reward:
                self._streaks[group.prompt.id] = self._streaks.get(group.prompt.id, 0) + 1
            else:
                self._streaks.pop(group.prompt.id, None)
        return Verdict(True)

    def metrics(self) -> dict[str, float]:
        """``solved`` prompts at the moment, and prompts that ``rested`` so far."""
        return {"solved": float(len(self._streaks)), "rested": float(self._rested)}

    def state_dict(self) -> dict[str, Any]:
        """Streaks, counter and generator."""
        version, words, _ = self._random.getstate()
        return {"streaks": dict(self._streaks), "rested": self._rested, "random": [version, *words]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the policy that gave ``state`` would."""
        self._streaks, self._rested = dict(state["streaks"]), state["rested"]
        version, *words = state["random"]
        self._random.setstate((version, tuple(words), None))
