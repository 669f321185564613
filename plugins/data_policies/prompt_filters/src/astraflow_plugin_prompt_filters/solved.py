"""Drops prompts that are solved nearly always.

AstraFlow 0.1.2's prompt curator ``filter_solved``: the success rate of a prompt, 0 at first, becomes
``memory · rate + (1 - memory) · share of its sequences with a reward above reward_above`` with each group;
the prompt is rolled out while its rate is below ``solved``. There a dropped prompt never returns, which is
``revisit = 0``; with more it is tried by chance, so that what was forgotten is found.
"""

from __future__ import annotations

from typing import Any

from astraflow_core.types import ComponentContext, GroupSummary, Prompt, Verdict
from astraflow_plugin_prompt_filters.config import SolvedFilterConfig
from astraflow_policy_tools.chance import Chance
from astraflow_policy_tools.outcomes import watched_policy
from astraflow_policy_tools.prompt_table import PromptTable
from astraflow_policy_tools.states import require_keys

KEEP = Verdict(True)


class SolvedFilter:
    """Admits by success rate, 8 bytes per prompt in addition to the ids."""

    def __init__(self, config: SolvedFilterConfig, context: ComponentContext) -> None:
        self._config = config
        self._policy = watched_policy("solved_filter", config.policy, context)
        self._chance = Chance(context.seed)
        self._table = PromptTable(rate="d")
        self._rate = self._table.column("rate")
        self._skipped = 0

    def admit(self, prompt: Prompt) -> bool:
        """Unless it is solved."""
        row = self._table.find(prompt.id)
        if row is None or self._rate[row] < self._config.solved:
            return True
        admitted = self._chance.happens(self._config.revisit)
        self._skipped += not admitted
        return admitted

    def why_refused(self, prompt: Prompt) -> str:
        """There is one reason."""
        return "solved"

    def accept(self, group: GroupSummary) -> Verdict:
        """Learn; every group is kept."""
        if group.policy == self._policy and group.rewards.size:
            row = self._table.row(group.prompt.id)
            rewards, above = group.rewards.tolist(), self._config.reward_above
            share = sum(reward > above for reward in rewards) / len(rewards)
            memory = self._config.memory
            self._rate[row] = memory * self._rate[row] + (1 - memory) * share
        return KEEP

    def metrics(self) -> dict[str, float]:
        """``prompts`` with a success rate, those ``solved`` now, offers ``skipped``."""
        solved = sum(rate >= self._config.solved for rate in self._rate)
        return {
            "prompts": float(len(self._table)),
            "solved": float(solved),
            "skipped": float(self._skipped),
        }

    def state_dict(self) -> dict[str, Any]:
        """Success rates, counter and generator."""
        return {
            "table": self._table.state_dict(),
            "skipped": self._skipped,
            "chance": self._chance.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the policy that gave ``state`` would."""
        require_keys(state, "table", "skipped", "chance")
        self._table.load_state_dict(state["table"])
        self._skipped = state["skipped"]
        self._chance.load_state_dict(state["chance"])
