"""Decisions of a list of data policies about a prompt or a group, and their counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

Decisions = Counter[tuple[str, str, str]]
"""(name of a data policy, point, decision) → count. Points are ``admit``, ``accept``, ``arrange``,
``draw`` and ``borrow``, of shadows ``shadow_admit`` …; the decision is the reason of a rejection,
or ``admitted``, ``accepted``, ``arranged``, ``held back``, ``drawn``, ``waited``, ``borrowed``,
``too few lent``."""


@dataclass(frozen=True, slots=True)
class PromptRefusal:
    """A rejected prompt: ``by`` which data policy (empty: the dataflow itself), and why."""

    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The first rejection in a list, if there is one, and those of the shadows before it."""

    refusal: PromptRefusal | None = None
    shadow_rejections: tuple[PromptRefusal, ...] = ()


def nested(decisions: Decisions) -> dict[str, dict[str, dict[str, int]]]:
    """Policy → point → decision → count."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for (policy, point, what), count in sorted(decisions.items()):
        found.setdefault(policy, {}).setdefault(point, {})[what] = count
    return found
