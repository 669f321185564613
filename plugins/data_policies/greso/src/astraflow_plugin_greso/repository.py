"""GRESO as its authors' repository has it (Infini-AI-Lab/GRESO, ``all_probabilistic``).

Zheng et al. 2025, arXiv 2506.02177. A prompt whose last ``z`` groups all had a mean reward of at least
``easy_mean``, or all of at most ``hard_mean``, is rolled out with probability ``max(p^z, floor)``: groups count
by their mean, with or without variance. From the second epoch on the controller compares, after each step, the
shares of easy and hard groups without variance among all groups of the step with their targets. With
``sampling_batch`` a step is sampled in rounds (:class:`~astraflow_plugin_greso.rounds.Rounds`), one after the
other; without, a step ends with each new version.

Ours: the repository's controller counts a hard group only if all 8 rewards are 0.1, so that with rewards of 0
and 1 it never sees one; here a group without variance is hard or easy by the same bounds as for its streak.
What a step keeps beyond its need stays in the buffer, the repository throws it away.
"""

from __future__ import annotations

import math
from typing import Any

from astraflow_core.types import ComponentContext, GroupSummary, Prompt, Verdict
from astraflow_plugin_greso.config import GresoRepositoryConfig
from astraflow_plugin_greso.rounds import Rounds
from astraflow_plugin_greso.streaks import Exploration, Kind, Streaks, StreakWindow, window_state
from astraflow_policy_tools.chance import Chance
from astraflow_policy_tools.outcomes import watched_policy
from astraflow_policy_tools.states import require_keys

KEEP = Verdict(True)


class GresoRepository:
    """Admits by streak and, with rounds, no more than a round wants."""

    def __init__(self, config: GresoRepositoryConfig, context: ComponentContext) -> None:
        self._config = config
        self._policy = watched_policy("greso_repository", config.policy, context)
        self._chance = Chance(context.seed)
        self._streaks = Streaks()
        self._exploration = Exploration(config)
        self._step = StreakWindow()
        self._rounds: Rounds | None = None
        if config.sampling_batch is not None and config.train_sequences is not None:
            self._rounds = Rounds(
                config.sampling_batch, config.train_sequences, config.smallest_batch
            )
        self._admitted = self._skipped = 0

    def admit(self, prompt: Prompt) -> bool:
        """By chance, if its last groups were all easy or all hard."""
        streak = self._streaks.offered(prompt.id)
        floor = self._config.floor
        admitted = self._chance.happens(self._exploration.chance(streak, floor, floor))
        self._admitted += admitted
        self._skipped += not admitted
        return admitted

    def why_refused(self, prompt: Prompt) -> str:
        """Of which kind its streak is."""
        return self._streaks.kind(prompt.id)

    def hold(self) -> bool:
        """Whether the running round has its prompts."""
        return self._rounds is not None and self._rounds.full

    def accept(self, group: GroupSummary) -> Verdict:
        """Learn; every group is kept."""
        rewards = group.rewards.tolist()
        if group.policy != self._policy or not rewards:
            return KEEP
        average = math.fsum(rewards) / len(rewards)
        kind: Kind = None
        if average >= self._config.easy_mean:
            kind = "easy"
        elif average <= self._config.hard_mean:
            kind = "hard"
        flat = len(rewards) == 1 or self._exploration.flat(group)
        self._streaks.note(group.prompt.id, kind)
        self._step.count(kind if flat else None)
        if self._rounds is not None:
            self._rounds.group(len(rewards), flat)
        return KEEP

    def on_admitted(self, prompt: Prompt) -> None:
        """The round has one prompt more."""
        if self._rounds is not None:
            self._rounds.admitted()

    def on_ended(self, prompt: Prompt, outcome: str) -> None:
        """The round, and perhaps the step, may be over."""
        if self._rounds is not None and self._rounds.ended():
            self._end_step()

    def on_version(self, policy: str, version: int) -> None:
        """Without rounds a step ends."""
        if self._rounds is None and policy == self._policy and version >= 1:
            self._end_step()

    def _end_step(self) -> None:
        if self._streaks.epoch_size:  # from the second epoch on
            self._exploration.adjust(self._step)
        self._step = StreakWindow()

    def metrics(self) -> dict[str, float]:
        """``p_easy``, ``p_hard`` now, ``ratio_easy``, ``ratio_hard`` when the controller looked last, prompts
        known, offers ``admitted`` and ``skipped``, with rounds the ``round_size`` and ``sampling_steps``."""
        exploration = self._exploration
        figures = {
            "p_easy": exploration.easy,
            "p_hard": exploration.hard,
            "ratio_easy": exploration.seen_easy,
            "ratio_hard": exploration.seen_hard,
            "prompts": float(len(self._streaks)),
            "admitted": float(self._admitted),
            "skipped": float(self._skipped),
        }
        if self._rounds is not None:
            figures["round_size"] = float(self._rounds.size)
            figures["sampling_steps"] = float(self._rounds.steps)
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Streaks, probabilities, the running step and round, counters and generator."""
        return {
            "streaks": self._streaks.state_dict(),
            "exploration": self._exploration.state_dict(),
            "step": window_state(self._step),
            "rounds": self._rounds.state_dict() if self._rounds is not None else None,
            "counts": [self._admitted, self._skipped],
            "chance": self._chance.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the policy that gave ``state`` would."""
        require_keys(state, "streaks", "exploration", "step", "rounds", "counts", "chance")
        self._streaks.load_state_dict(state["streaks"])
        self._exploration.load_state_dict(state["exploration"])
        self._step = StreakWindow(**state["step"])
        if self._rounds is not None and state["rounds"] is not None:
            self._rounds.load_state_dict(state["rounds"])
        self._admitted, self._skipped = state["counts"]
        self._chance.load_state_dict(state["chance"])
