"""The cost of a data policy: all its calls for one prompt, and its share of a batch."""

from __future__ import annotations

from typing import Any

from astraflow_core.protocols.data_policy import (
    Accept,
    Admit,
    Arrange,
    Borrow,
    Draw,
    Follow,
    Key,
)
from astraflow_core.types import Prompt
from astraflow_testing.benchmarks.pairs import Work
from astraflow_testing.conformance._data_policies.data_world import rows_of, summary

BATCH, PROMPTS = 64, 1024
_REWARDS = ([1.0] * 8, [0.0] * 8, [0.0, 1.0] * 4, [0.5, 1.0] * 4)

BESIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "draw": ("replay", {"ratio": 0.5}),
    "arrange": ("staleness_decay", {}),
    "key": ("ordering", {"by": "surprise"}),
    "admit": ("solved_filter", {}),
    "accept": ("reward_filter", {"low": 0.1}),
}
"""Capability → an included policy that has it, and its keys."""


def work(policy: Any) -> Work:
    """One unit is one prompt: ``admit``, ``on_admitted``, ``accept`` and ``on_ended``; of a policy that orders, arranges,
    draws or borrows rows, one batch of 64 rows."""
    known = [Prompt(f"prompt:{n:08}", {"prompt": "x", "source": "s"}) for n in range(PROMPTS)]
    groups = [summary(prompt, _REWARDS[n % 4], 3) for n, prompt in enumerate(known)]
    rows = rows_of(4 * BATCH)
    fresh, kept = rows[BATCH:], rows[:BATCH]
    at = 0

    def decide() -> None:
        nonlocal at
        prompt, group = known[at % PROMPTS], groups[at % PROMPTS]
        at += 1
        if isinstance(policy, Admit):
            policy.admit(prompt)
        if follows:
            policy.on_admitted(prompt)
        if accepts:
            policy.accept(group)
        if follows:
            policy.on_ended(prompt, "accepted")

    def serve() -> None:
        if isinstance(policy, Key):
            for row in fresh:
                policy.key(row)
        given = policy.arrange(fresh, 4) if isinstance(policy, Arrange) else fresh
        if isinstance(policy, Draw):
            policy.draw(BATCH, given, kept, 4)
        if isinstance(policy, Borrow):
            policy.borrow(BATCH, kept, 4)

    follows, accepts = isinstance(policy, Follow), isinstance(policy, Accept)
    one = serve if isinstance(policy, Key | Arrange | Draw | Borrow) else decide

    def each(count: int) -> None:
        for _ in range(count):
            one()

    return each
