"""What both forms have in common: streaks of prompts, exploration probabilities, epochs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from astraflow_core.types import GroupSummary
from astraflow_plugin_greso.config import ExplorationConfig
from astraflow_policy_tools.prompt_table import PromptTable
from astraflow_policy_tools.states import require_keys
from astraflow_policy_tools.statistics import without_variance

Kind = Literal["easy", "hard"] | None
LONGEST = 32767


class Streaks:
    """How many groups in a row were easy (positive) or hard (negative), by prompt: 2 bytes each in addition to
    the ids. A change of kind starts at 1, a group of neither kind at 0."""

    def __init__(self) -> None:
        self._table = PromptTable(streak="h")
        self._streak = self._table.column("streak")
        self.epoch_size = 0

    def __len__(self) -> int:
        return len(self._table)

    def offered(self, prompt_id: str) -> int:
        """The streak of a prompt that is offered. The first one that comes again ends the first epoch,
        which had ``epoch_size`` prompts."""
        if not self.epoch_size and prompt_id in self._table:
            self.epoch_size = len(self._table)
        return int(self._streak[self._table.row(prompt_id)])

    def kind(self, prompt_id: str) -> str:
        """Of which kind the last groups of the prompt were, as a phrase."""
        row = self._table.find(prompt_id)
        streak = 0 if row is None else self._streak[row]
        return "easy streak" if streak > 0 else "hard streak" if streak < 0 else "no streak"

    def note(self, prompt_id: str, kind: Kind) -> None:
        """A group of the prompt was of this kind."""
        row = self._table.row(prompt_id)
        streak = self._streak[row]
        if kind is None:
            streak = 0
        elif kind == "easy":
            streak = streak + 1 if streak > 0 else 1
        else:
            streak = streak - 1 if streak < 0 else -1
        if -LONGEST <= streak <= LONGEST:
            self._streak[row] = streak

    def state_dict(self) -> dict[str, Any]:
        """Streaks and epoch."""
        return {"table": self._table.state_dict(), "epoch_size": self.epoch_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        require_keys(state, "table", "epoch_size")
        self._table.load_state_dict(state["table"])
        self.epoch_size = state["epoch_size"]


@dataclass(slots=True)
class StreakWindow:
    """Groups since the controller looked last."""

    groups: int = 0
    easy: int = 0
    hard: int = 0

    def count(self, kind: Kind) -> None:
        """One group more."""
        self.groups += 1
        self.easy += kind == "easy"
        self.hard += kind == "hard"


class Exploration:
    """The exploration probabilities and their controller: too many groups of a kind lower its probability
    by ``step``, else it rises by ``step``, within ``lowest`` and ``highest``."""

    def __init__(self, config: ExplorationConfig) -> None:
        self._config = config
        self.easy = config.p_easy
        self.hard = config.p_hard
        self.seen_easy = self.seen_hard = 0.0

    def flat(self, group: GroupSummary) -> bool:
        """Whether the group has several rewards that count as equal."""
        config = self._config
        return without_variance(group.rewards, config.tolerance, config.absolute_tolerance)

    def chance(self, streak: int, floor_easy: float, floor_hard: float) -> float:
        """Probability of rolling out a prompt with this streak."""
        if streak == 0:
            return 1.0
        if streak > 0:
            return max(self.easy**streak, floor_easy)
        return max(self.hard**-streak, floor_hard)

    def adjust(self, window: StreakWindow) -> None:
        """Move by what the groups of a window were; without any nothing moves."""
        if window.groups == 0:
            return
        config = self._config
        self.seen_easy, self.seen_hard = window.easy / window.groups, window.hard / window.groups
        self.easy = self._moved(self.easy, self.seen_easy >= config.target_easy)
        self.hard = self._moved(self.hard, self.seen_hard >= config.target_hard)

    def _moved(self, probability: float, too_many: bool) -> float:
        config = self._config
        if too_many:
            return max(probability - config.step, config.lowest)
        return min(probability + config.step, config.highest)

    def state_dict(self) -> list[float]:
        """Probabilities, and the shares that were seen last."""
        return [self.easy, self.hard, self.seen_easy, self.seen_hard]

    def load_state_dict(self, state: list[float]) -> None:
        """Restore :meth:`state_dict`."""
        self.easy, self.hard, self.seen_easy, self.seen_hard = state


def window_state(window: StreakWindow) -> dict[str, int]:
    """A window as JSON."""
    return asdict(window)
