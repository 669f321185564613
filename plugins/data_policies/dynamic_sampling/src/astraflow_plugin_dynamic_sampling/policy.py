"""Dynamic sampling: only groups whose rewards differ are kept.

The filter of DAPO (Yu et al. 2025, arXiv 2503.14476, section 3.2) by reward, before any normalisation, in float32.
``tolerance = 0`` is the exact comparison of GRESO's repository; ``tolerance = 1e-5, absolute_tolerance = 1e-8``
with ``singletons = "drop"`` is AstraFlow 0.1.2's ``filter_zero_adv`` (``allclose`` to the first reward);
``singletons = "keep"`` is verl's and SkyRL's ``std > 0`` with groups of one let through.
"""

from __future__ import annotations

from typing import Any

from astraflow_core.types import ComponentContext, GroupSummary, Verdict
from astraflow_plugin_dynamic_sampling.config import DynamicSamplingConfig
from astraflow_policy_tools.states import require_keys
from astraflow_policy_tools.statistics import without_variance

EQUAL = Verdict(False, "all rewards equal")
SINGLE = Verdict(False, "group of one")
KEEP = Verdict(True)


class DynamicSampling:
    """Judges a group by the spread of its rewards."""

    def __init__(self, config: DynamicSamplingConfig, context: ComponentContext) -> None:
        self._config = config
        self._groups = self._dropped = 0

    def accept(self, group: GroupSummary) -> Verdict:
        """Refuse a group without variance of rewards."""
        verdict = self._judge(group)
        self._groups += 1
        self._dropped += not verdict.accepted
        return verdict

    def metrics(self) -> dict[str, float]:
        """``groups`` judged and ``dropped``, since the start."""
        return {"groups": float(self._groups), "dropped": float(self._dropped)}

    def state_dict(self) -> dict[str, Any]:
        """Its counts; no decision depends on them."""
        return {"groups": self._groups, "dropped": self._dropped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        require_keys(state, "groups", "dropped")
        self._groups, self._dropped = state["groups"], state["dropped"]

    def _judge(self, group: GroupSummary) -> Verdict:
        config = self._config
        if len(group.rewards) == 1:
            return KEEP if config.singletons == "keep" else SINGLE
        equal = without_variance(group.rewards, config.tolerance, config.absolute_tolerance)
        return EQUAL if equal else KEEP
