"""GRESO as AstraFlow's dataflow has it: typed streaks, floors, a controller per version.

The method is that of Zheng et al. 2025, arXiv 2506.02177 (``p_filter = 1 - p^z``). The variant is AstraFlow
0.1.2's prompt curator ``greso`` with the hyper-parameters of the paper's runs: a prompt whose last ``z`` groups
had no variance of rewards, all of one kind (easy if the mean reward is above ``easy_above``, else hard), is
rolled out with probability ``max(p_kind^z, floor_kind)``; the other kind restarts at 1, variance at 0. At
each new version of the policy the controller compares the shares of easy and hard groups without variance
among all groups since the version before with their targets. It rests until a whole epoch was offered after
version 1. The paper itself has no floors (``floor_easy = floor_hard = 0``).

Rewards are equal if they are exactly equal in float32; ``tolerance = 1e-5, absolute_tolerance = 1e-8`` is the
``allclose`` of the original. Ours: a group of one says nothing (it counts neither for a streak nor for the controller),
and the epoch is counted by the prompts offered.
"""

from __future__ import annotations

from typing import Any

from astraflow_core.types import ComponentContext, GroupSummary, Prompt, Verdict
from astraflow_plugin_greso.config import GresoConfig
from astraflow_plugin_greso.streaks import Exploration, Kind, Streaks, StreakWindow, window_state
from astraflow_policy_tools.chance import Chance
from astraflow_policy_tools.outcomes import watched_policy
from astraflow_policy_tools.states import require_keys
from astraflow_policy_tools.statistics import mean

KEEP = Verdict(True)


class Greso:
    """Admits by streak; learns from all groups of one policy, kept or not."""

    def __init__(self, config: GresoConfig, context: ComponentContext) -> None:
        self._config = config
        self._policy = watched_policy("greso", config.policy, context)
        self._chance = Chance(context.seed)
        self._streaks = Streaks()
        self._exploration = Exploration(config)
        self._window = StreakWindow()
        self._admitted = self._skipped = 0
        self._noticed = False
        self._drawn = 0

    @property
    def _armed(self) -> bool:
        size = self._streaks.epoch_size
        return size > 0 and self._drawn >= size

    def admit(self, prompt: Prompt) -> bool:
        """By chance, if its last groups had no variance."""
        streak = self._streaks.offered(prompt.id)
        self._drawn += self._noticed
        config = self._config
        chance = self._exploration.chance(streak, config.floor_easy, config.floor_hard)
        admitted = self._chance.happens(chance)
        self._admitted += admitted
        self._skipped += not admitted
        return admitted

    def why_refused(self, prompt: Prompt) -> str:
        """Of which kind its streak is."""
        return self._streaks.kind(prompt.id)

    def accept(self, group: GroupSummary) -> Verdict:
        """Learn; every group is kept."""
        if group.policy == self._policy and group.rewards.size > 1:
            kind: Kind = None
            if self._exploration.flat(group):
                kind = "easy" if mean(group.rewards) > self._config.easy_above else "hard"
            self._streaks.note(group.prompt.id, kind)
            self._window.count(kind)
        return KEEP

    def on_version(self, policy: str, version: int) -> None:
        """The controller looks at the groups since the version before."""
        if policy != self._policy or version < 1:
            return
        if self._armed:
            self._exploration.adjust(self._window)
        self._noticed = True
        self._window = StreakWindow()

    def metrics(self) -> dict[str, float]:
        """``p_easy``, ``p_hard`` now, ``ratio_easy``, ``ratio_hard`` when the controller looked last,
        ``armed`` (0 or 1), prompts known, offers ``admitted`` and ``skipped``."""
        exploration = self._exploration
        return {
            "p_easy": exploration.easy,
            "p_hard": exploration.hard,
            "ratio_easy": exploration.seen_easy,
            "ratio_hard": exploration.seen_hard,
            "armed": float(self._armed),
            "prompts": float(len(self._streaks)),
            "admitted": float(self._admitted),
            "skipped": float(self._skipped),
        }

    def state_dict(self) -> dict[str, Any]:
        """Streaks, probabilities, window, counters and generator."""
        return {
            "streaks": self._streaks.state_dict(),
            "exploration": self._exploration.state_dict(),
            "window": window_state(self._window),
            "counts": [self._admitted, self._skipped, self._drawn],
            "noticed": self._noticed,
            "chance": self._chance.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the policy that gave ``state`` would."""
        require_keys(state, "streaks", "exploration", "window", "counts", "noticed", "chance")
        self._streaks.load_state_dict(state["streaks"])
        self._exploration.load_state_dict(state["exploration"])
        self._window = StreakWindow(**state["window"])
        self._admitted, self._skipped, self._drawn = state["counts"]
        self._noticed = state["noticed"]
        self._chance.load_state_dict(state["chance"])
