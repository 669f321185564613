"""Easy first, or short first, or whatever a schedule says.

A prompt is admitted if its difficulty lies within ``low`` and ``high``, both of which may change linearly
between versions. Difficulty is a number that comes with the prompt, the length of its text, or what this run
saw of it: 1 - the running mean ``memory · mean + (1 - memory) · mean reward of the group`` (its first group
gives the first mean). A prompt never met has no failure rate yet and is admitted. What lies outside the
bounds is admitted with the chance ``explore``.
"""

from __future__ import annotations

from typing import Any

from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, GroupSummary, Prompt, Verdict
from astraflow_plugin_prompt_filters.config import CurriculumConfig
from astraflow_policy_tools.chance import Chance
from astraflow_policy_tools.outcomes import watched_policy
from astraflow_policy_tools.prompt_table import PromptTable
from astraflow_policy_tools.schedule import at
from astraflow_policy_tools.states import require_keys
from astraflow_policy_tools.statistics import mean

KEEP = Verdict(True)


class Curriculum:
    """Admits by difficulty."""

    def __init__(self, config: CurriculumConfig, context: ComponentContext) -> None:
        self._config = config
        self._policy = watched_policy("curriculum", config.policy, context)
        self._chance = Chance(context.seed)
        self._means = PromptTable(mean="d")
        self._mean = self._means.column("mean")
        self._version = 0
        self._within = self._explored = self._skipped = 0

    def admit(self, prompt: Prompt) -> bool:
        """Within the bounds of the version, or by chance."""
        difficulty = self._difficulty(prompt)
        low, high = at(self._config.low, self._version), at(self._config.high, self._version)
        if difficulty is None or low <= difficulty <= high:
            self._within += 1
            return True
        explored = self._chance.happens(self._config.explore)
        self._explored += explored
        self._skipped += not explored
        return explored

    def why_refused(self, prompt: Prompt) -> str:
        """On which side of the bounds it lies."""
        difficulty, low = self._difficulty(prompt), at(self._config.low, self._version)
        return "below low" if difficulty is not None and difficulty < low else "above high"

    def accept(self, group: GroupSummary) -> Verdict:
        """Learn how often the prompt fails; every group is kept."""
        if (
            self._config.by == "failure_rate"
            and group.policy == self._policy
            and group.rewards.size
        ):
            average, known = mean(group.rewards), group.prompt.id in self._means
            row, memory = self._means.row(group.prompt.id), self._config.memory
            before = self._mean[row] if known else average
            self._mean[row] = memory * before + (1 - memory) * average
        return KEEP

    def on_version(self, policy: str, version: int) -> None:
        """The bounds are those of the newest version."""
        if policy == self._policy:
            self._version = version

    def metrics(self) -> dict[str, float]:
        """Bounds ``low`` and ``high`` now; offers ``within`` them, ``explored`` and ``skipped``."""
        return {
            "low": at(self._config.low, self._version),
            "high": at(self._config.high, self._version),
            "within": float(self._within),
            "explored": float(self._explored),
            "skipped": float(self._skipped),
        }

    def state_dict(self) -> dict[str, Any]:
        """Means, version, counters and generator."""
        return {
            "means": self._means.state_dict(),
            "version": self._version,
            "counts": [self._within, self._explored, self._skipped],
            "chance": self._chance.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the policy that gave ``state`` would."""
        require_keys(state, "means", "version", "counts", "chance")
        self._means.load_state_dict(state["means"])
        self._version = state["version"]
        self._within, self._explored, self._skipped = state["counts"]
        self._chance.load_state_dict(state["chance"])

    def _difficulty(self, prompt: Prompt) -> float | None:
        by = self._config.by
        if by == "failure_rate":
            row = self._means.find(prompt.id)
            return None if row is None else 1.0 - float(self._mean[row])
        if by == "length":
            return float(_length(prompt))
        value = prompt.data.get(self._config.field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PromptError(
                f"data policy 'curriculum': prompt {prompt.id!r} needs a number as "
                f"{self._config.field!r}, it has {value!r:.40}"
            )
        return float(value)


def _length(prompt: Prompt) -> int:
    """Characters of the text, or of all messages."""
    text = prompt.data.get("prompt", "")
    if isinstance(text, str):
        return len(text)
    return sum(len(str(message.get("content", ""))) for message in text)
