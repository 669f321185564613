"""Which completion earns which policy its reward."""

from __future__ import annotations

from collections.abc import Callable

from astraflow_core.types import Completion, TrajectoryView


def judge(
    view: TrajectoryView, each_policy: bool, score: Callable[[Completion], float]
) -> float | dict[str, float]:
    """The score of the last completion, for all policies of the trajectory; or policy → the score of its
    own last completion. A trajectory without completions scores 0 either way."""
    if each_policy and view.completions:
        last = {completion.policy: completion for completion in view.completions}
        return {policy: score(completion) for policy, completion in last.items()}
    return score(view.completions[-1]) if view.completions else 0.0
