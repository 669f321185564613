"""What a list of data policies decided about a prompt or a group, and how often each decided what."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

Decisions = Counter[tuple[str, str, str]]
"""(name of a data policy, point, what it decided) → how often. Points are ``admit``, ``accept``, ``arrange``,
``draw`` and ``borrow``, of shadows ``shadow_admit`` …; what was decided is the reason of a refusal, or ``admitted``,
``accepted``, ``arranged``, ``held back``, ``drawn``, ``waited``, ``borrowed``, ``too few lent``."""


@dataclass(frozen=True, slots=True)
class PromptRefusal:
    """``by`` whom, and why. ``by`` is empty if the dataflow itself refused."""

    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The first refusal of a list, if there was one, and those of the shadows that were asked before it."""

    refusal: PromptRefusal | None = None
    shadow_rejections: tuple[PromptRefusal, ...] = ()


def nested(decisions: Decisions) -> dict[str, dict[str, dict[str, int]]]:
    """Policy → point → decision → count."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for (policy, point, what), count in sorted(decisions.items()):
        found.setdefault(policy, {}).setdefault(point, {})[what] = count
    return found
