"""Whose outcomes a data policy under ``[prompts] data`` learns from."""

from __future__ import annotations

from astraflow_core.errors import UserError
from astraflow_core.types import ComponentContext


def watched_policy(component: str, policy: str | None, context: ComponentContext) -> str:
    """The policy that the key ``policy`` of ``component`` names, the run's first one by default;
    :class:`UserError` if the run has none of that name."""
    known = context.run.policies
    if policy is None:
        return context.policy or known[0]
    if policy not in known:
        raise UserError(
            f"data policy {component!r}: policy = {policy!r}, but this run has {', '.join(known)}"
        )
    return policy
