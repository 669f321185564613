"""Fewer concurrent rollouts while arriving samples are stale.

Additive increase, multiplicative decrease (Chiu & Jain 1989), as congestion control has it: with each new
version of the policy the limit of prompts under way is multiplied by ``cut`` if the groups that came in since
the version before were, on average, staler than ``target``; else it grows by ``more``, if it was reached at all.
Staleness of a group is the policy's newest version minus the mean smallest version of its trained sequences.
"""

from __future__ import annotations

from typing import Any

from astraflow_core.types import ComponentContext, GroupSummary, Prompt, Verdict
from astraflow_plugin_staleness.config import StalenessThrottleConfig
from astraflow_policy_tools.outcomes import watched_policy
from astraflow_policy_tools.states import require_keys

KEEP = Verdict(True)


class StalenessThrottle:
    """Holds admission back; judges and drops nothing."""

    def __init__(self, config: StalenessThrottleConfig, context: ComponentContext) -> None:
        self._config = config
        self._policy = watched_policy("staleness_throttle", config.policy, context)
        self._limit = float(config.first)
        self._under_way = 0
        self._reached = False
        self._groups, self._staleness, self._last = 0, 0.0, 0.0

    def hold(self) -> bool:
        """Whether as many prompts are under way as may be."""
        return self._under_way >= int(self._limit)

    def on_admitted(self, prompt: Prompt) -> None:
        """One more is under way."""
        self._under_way += 1
        self._reached |= self.hold()

    def on_ended(self, prompt: Prompt, outcome: str) -> None:
        """One less is under way."""
        self._under_way -= 1

    def accept(self, group: GroupSummary) -> Verdict:
        """Learn how old samples are; every group is kept."""
        if group.policy != self._policy:
            return KEEP
        tokens, versions = group.trained.tolist(), group.min_versions.tolist()
        trained = [version for version, count in zip(versions, tokens, strict=True) if count]
        if trained:
            self._groups += 1
            self._staleness += group.version - sum(trained) / len(trained)
        return KEEP

    def on_version(self, policy: str, version: int) -> None:
        """Set the limit again."""
        if policy != self._policy or self._groups == 0:
            return
        self._last = self._staleness / self._groups
        if self._last > self._config.target:
            self._limit = max(self._limit * self._config.cut, float(self._config.least))
        elif self._reached:
            self._limit += self._config.more
        self._groups, self._staleness, self._reached = 0, 0.0, False

    def metrics(self) -> dict[str, float]:
        """``limit`` and prompts ``under_way`` now, mean ``staleness`` when the limit was set last."""
        return {
            "limit": float(int(self._limit)),
            "under_way": float(self._under_way),
            "staleness": self._last,
        }

    def state_dict(self) -> dict[str, Any]:
        """Limit, prompts under way, and what came since the last version."""
        return {
            "limit": self._limit,
            "under_way": self._under_way,
            "reached": self._reached,
            "window": [self._groups, self._staleness, self._last],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the policy that gave ``state`` would."""
        require_keys(state, "limit", "under_way", "reached", "window")
        self._limit, self._under_way = state["limit"], state["under_way"]
        self._reached = state["reached"]
        self._groups, self._staleness, self._last = state["window"]
