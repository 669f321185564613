"""Passes over prompts whose rollouts keep failing.

A prompt fails when its task ends without a group: a RaaS said that it cannot be done, or it was set aside after
too many attempts. After ``after`` failures in a row it is passed over for its next ``rest`` offers, after each
further failure for twice as many as before, at most ``longest``; a group that comes back, kept or not, clears it.
"""

from __future__ import annotations

from typing import Any

from astraflow_core.types import ComponentContext, Prompt
from astraflow_plugin_prompt_filters.config import QuarantineConfig
from astraflow_policy_tools.prompt_table import PromptTable
from astraflow_policy_tools.states import require_keys

FAILED = ("failed", "set_aside")


class Quarantine:
    """Admits by failures; only prompts that ever failed take memory."""

    def __init__(self, config: QuarantineConfig, context: ComponentContext) -> None:
        self._config = config
        self._table = PromptTable(failures="i", rest="i")
        self._failures, self._rest = self._table.column("failures"), self._table.column("rest")
        self._skipped = 0

    def admit(self, prompt: Prompt) -> bool:
        """Unless it rests."""
        row = self._table.find(prompt.id)
        if row is None or self._rest[row] == 0:
            return True
        self._rest[row] -= 1
        self._skipped += 1
        return False

    def why_refused(self, prompt: Prompt) -> str:
        """There is one reason."""
        return "failed in a row"

    def on_admitted(self, prompt: Prompt) -> None:
        """Nothing follows from that."""

    def on_ended(self, prompt: Prompt, outcome: str) -> None:
        """Count failures in a row."""
        if outcome not in FAILED:
            row = self._table.find(prompt.id)
            if row is not None:
                self._failures[row] = self._rest[row] = 0
            return
        row = self._table.row(prompt.id)
        self._failures[row] += 1
        times = self._failures[row] - self._config.after
        if times >= 0:
            # 2 ** 30 is beyond any bound that fits the column.
            self._rest[row] = min(self._config.rest << min(times, 30), self._config.longest)

    def metrics(self) -> dict[str, float]:
        """Prompts that rest (``quarantined``), that failed when they were tried last (``failing``), and
        offers ``skipped``."""
        return {
            "quarantined": float(sum(rest > 0 for rest in self._rest)),
            "failing": float(sum(failures > 0 for failures in self._failures)),
            "skipped": float(self._skipped),
        }

    def state_dict(self) -> dict[str, Any]:
        """Failures, rests and the counter."""
        return {"table": self._table.state_dict(), "skipped": self._skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the policy that gave ``state`` would."""
        require_keys(state, "table", "skipped")
        self._table.load_state_dict(state["table"])
        self._skipped = state["skipped"]
