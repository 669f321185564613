"""What an agent returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from astraflow_core.errors import WorkflowError


def rewards_of(returned: Any, policies: Sequence[str], who: str) -> dict[str, float]:
    """The reward of each policy, from a number or from ``{policy: number}``; empty for ``None``: the run's reward
    component scores then. :class:`WorkflowError` for anything else."""
    if returned is None:
        return {}
    if _is_number(returned):
        return {policy: float(returned) for policy in policies}
    if isinstance(returned, dict) and returned and all(map(_is_number, returned.values())):
        unknown = sorted(set(returned) - set(policies))
        if unknown:
            raise WorkflowError(
                f"{who} rewarded {', '.join(map(repr, unknown))}, which is not a policy that it sampled from; those are "
                f"{', '.join(policies) or 'none'}"
            )
        return {policy: float(reward) for policy, reward in returned.items()}
    raise WorkflowError(
        f"{who} returned {returned!r:.200}; expected a finite number, {{policy: number}}, or nothing"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
