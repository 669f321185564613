"""What an agent returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from astraflow_core.errors import WorkflowError


class TurnCredit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent says of one of its turns. ``id`` is that of the reply, as the agent got it (``chatcmpl-…``, ``resp_…``,
    ``msg_…`` or ``gen-…``), and ``choice`` its place among those of a request with ``n`` > 1. ``reward`` and ``state``
    become the turn's of :attr:`Sequence.turn_rewards <astraflow_core.types.Sequence>` and ``turn_states``."""

    id: str
    reward: float | None = None
    state: str | None = None
    choice: Annotated[int, msgspec.Meta(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class AgentReport:
    """``reward`` as :func:`rewards_of` reads it, and what is said of turns."""

    reward: Any
    turns: tuple[TurnCredit, ...] = ()


def report_of(returned: Any, who: str) -> AgentReport:
    """What ``who`` returned: a reward, or an object with ``turns`` and at most one of ``reward`` and ``rewards``.
    :class:`WorkflowError` for other fields, and for turns that are none."""
    if not isinstance(returned, dict) or not isinstance(returned.get("turns"), list):
        return AgentReport(returned)
    rewards = [returned[name] for name in ("reward", "rewards") if name in returned]
    unknown = sorted(set(returned) - {"reward", "rewards", "turns"})
    if unknown or len(rewards) > 1:
        what = f"unknown fields {', '.join(unknown)}" if unknown else "both reward and rewards"
        raise WorkflowError(
            f"{who} returned an object with turns and {what}; expected turns and one of reward and rewards, or none"
        )
    try:
        turns = msgspec.convert(returned["turns"], tuple[TurnCredit, ...])
    except msgspec.ValidationError as error:
        raise WorkflowError(
            f'{who} returned turns that are not valid: {error}; expected {{"id": id of a reply, "reward": number, "state": '
            "text}, of which reward and state may be left out"
        ) from error
    return AgentReport(rewards[0] if rewards else None, turns)


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
