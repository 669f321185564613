"""Filters that look at one group and remember nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.types import ComponentContext, GroupSummary, Verdict
from astraflow_plugin_group_filters.config import (
    LengthFilterConfig,
    OverlongFilterConfig,
    PartialGroupsConfig,
    RewardFilterConfig,
)
from astraflow_policy_tools.statistics import mean

KEEP = Verdict(True)


class RewardFilter:
    """Keeps a group if the mean (min, max, std with n - 1) of its rewards lies within ``low`` and ``high``,
    both included. With ``of = "mean"`` and rewards of 0 and 1 this is the accuracy filter of PRIME (Cui et al.
    2025, arXiv 2502.01456), which keeps 0.2 to 0.8. The std of a group of one is 0."""

    def __init__(self, config: RewardFilterConfig, context: ComponentContext) -> None:
        self._config = config
        self._low = Verdict(False, f"{config.of} reward too low")
        self._high = Verdict(False, f"{config.of} reward too high")

    def accept(self, group: GroupSummary) -> Verdict:
        """Refuse what lies outside the bounds."""
        value = _statistic(group.rewards, self._config.of)
        return _in_range(value, self._config.low, self._config.high, self._low, self._high)


class LengthFilter:
    """Keeps a group if the longest (shortest, mean) of its sequences has ``low`` to ``high`` tokens."""

    def __init__(self, config: LengthFilterConfig, context: ComponentContext) -> None:
        self._config = config
        self._low, self._high = Verdict(False, "too short"), Verdict(False, "too long")

    def accept(self, group: GroupSummary) -> Verdict:
        """Refuse what lies outside the bounds."""
        lengths = group.lengths if self._config.tokens == "all" else group.trained
        value = _statistic(lengths, self._config.of)
        return _in_range(value, self._config.low, self._config.high, self._low, self._high)


class OverlongFilter:
    """Drops a group of which more than the share ``most`` ended by the token limit: their rewards judge an
    answer that was cut off. DAPO's overlong filtering (arXiv 2503.14476, section 3.4) takes such sequences out
    of the loss one by one; a data policy judges whole groups, so that their statistics stay those of all."""

    def __init__(self, config: OverlongFilterConfig, context: ComponentContext) -> None:
        self._most = config.most
        self._refusal = Verdict(False, "overlong")

    def accept(self, group: GroupSummary) -> Verdict:
        """Refuse if too many were cut off."""
        share = mean(group.truncated) if group.truncated.size else 0.0
        return self._refusal if share > self._most else KEEP


class PartialGroups:
    """Keeps a group only if at least ``at_least`` sequences of the policy came of it: trajectories that ran
    over their deadline or were rejected by the workflow are missing from it."""

    def __init__(self, config: PartialGroupsConfig, context: ComponentContext) -> None:
        self._at_least = config.at_least
        self._refusal = Verdict(False, "too few sequences")

    def accept(self, group: GroupSummary) -> Verdict:
        """Refuse if too few are left."""
        return KEEP if group.rewards.size >= self._at_least else self._refusal


class AcceptAll:
    """Keeps every group: what a run without any policy does, written down."""

    def __init__(self, config: None, context: ComponentContext) -> None:
        pass

    def accept(self, group: GroupSummary) -> Verdict:
        """Always."""
        return KEEP


def _statistic(values: npt.NDArray[Any], of: str) -> float:
    if of == "std":
        return float(np.std(values, ddof=1)) if values.size > 1 else 0.0
    if of == "mean":
        return mean(values)
    return float(values.min() if of == "min" else values.max())


def _in_range(
    value: float, low: float | None, high: float | None, too_low: Verdict, too_high: Verdict
) -> Verdict:
    if low is not None and value < low:
        return too_low
    if high is not None and value > high:
        return too_high
    return KEEP
