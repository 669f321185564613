"""Detects that the groups of a run give a policy nothing to learn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from astraflow_runtime.dataflow.rows.statistics import GroupStatistics

MANY_GROUPS = 64
"""Consecutive groups of one policy that cause a warning."""

ABSENT = "no sequence of this policy"
_ROUNDING = 1e-9
"""Largest standard deviation, relative to the mean, of rewards that count as equal."""


def without_spread(statistics: GroupStatistics) -> bool:
    """Whether the rewards of a group are all equal."""
    return statistics.std <= _ROUNDING * max(1.0, abs(statistics.mean))


class GroupWatch:
    """Checks every training group, before and after the data policies of ``policy`` judged it.
    ``equal``: the latest consecutive groups whose rewards were equal within the group; groups of
    one sequence do not count. ``fruitless``: the latest consecutive groups of which no row was
    kept.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.equal = self.fruitless = 0
        self._lowest = self._highest = 0.0
        self._reasons: Counter[str] = Counter()
        self._told_equal = self._told_fruitless = self._told_different = False

    def note(self, statistics: GroupStatistics | None, why_none: str) -> Iterator[str]:
        """Check a group. ``statistics``: of the policy's rewards, ``None`` if it has no sequence in
        the group; ``why_none``: why no row was kept, empty if some were. Returns warnings, each
        once in a run.
        """
        if statistics is not None and statistics.size > 1:
            yield from self._compare(statistics)
        if not why_none:
            self.fruitless = 0
            self._reasons.clear()
            return
        self.fruitless += 1
        self._reasons[why_none] += 1
        # Groups rejected for equal rewards are reported as such.
        known = self.equal >= MANY_GROUPS
        if self.fruitless >= MANY_GROUPS and not (self._told_fruitless or known):
            self._told_fruitless = True
            yield (
                f"the last {self.fruitless} groups left policy {self.policy!r} no row to train on, so its "
                f"batch cannot fill: {self.why}; see docs/does-not-learn.md"
            )

    @property
    def why(self) -> str:
        """The most frequent reasons why no row was kept of the latest ``fruitless`` groups, counted."""
        return ", ".join(f'"{name}" ({n})' for name, n in self._reasons.most_common(3))

    def _compare(self, statistics: GroupStatistics) -> Iterator[str]:
        mean = statistics.mean
        if not without_spread(statistics):
            if self._told_equal and not self._told_different:
                self._told_different = True
                yield (
                    f"rewards within a group of policy {self.policy!r} differ again, after {self.equal} groups "
                    "with equal rewards"
                )
            self.equal = 0
            return
        self._lowest = min(mean, self._lowest) if self.equal else mean
        self._highest = max(mean, self._highest) if self.equal else mean
        self.equal += 1
        if self.equal >= MANY_GROUPS and not self._told_equal:
            self._told_equal = True
            same = self._highest - self._lowest <= _ROUNDING * max(1.0, abs(mean))
            rewards = (
                f"all {mean:.4g}"
                if same
                else f"from {self._lowest:.4g} to {self._highest:.4g} between groups"
            )
            yield (
                f"the last {self.equal} groups of policy {self.policy!r} had equal rewards ({rewards}): an algorithm "
                "that compares rewards learns nothing from them. Check the reward, the length of the answers and "
                "the difficulty of the prompts; see docs/does-not-learn.md"
            )
