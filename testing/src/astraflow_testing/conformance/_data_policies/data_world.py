"""A small dataflow for the data policy suite: it offers prompts, finishes groups and serves rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from astraflow_core.protocols.data_policy import (
    Accept,
    Admit,
    Arrange,
    Borrow,
    Draw,
    Explain,
    Follow,
    Key,
    OnVersion,
)
from astraflow_core.types import BufferedRow, GroupSummary, Prompt
from astraflow_runtime.dataflow.rows.statistics import group_statistics

COUNT = 4
"""Rows of a batch."""
GROUP = 4
_STEPS_PER_VERSION = 5
_KEPT = 24

_HOOKS = (Accept, Admit, Arrange, Borrow, Draw, Explain, Follow, Key, OnVersion)

Decision = tuple[str, Any]
"""A hook and its answer."""


@dataclass
class DataWorld:
    """Everything that happens around one data policy; only its decisions change the course.

    What a group earns depends on ``seed`` and on the step: groups differ, are all right, all wrong, or
    have one row.
    """

    prompts: Sequence[Prompt]
    seed: int = 0
    step: int = 0
    arrivals: int = 0
    fresh: list[tuple[float, BufferedRow]] = field(default_factory=list)
    kept: list[BufferedRow] = field(default_factory=list)
    _policy: Any = field(default=None, init=False, repr=False, compare=False)
    _hooks: frozenset[Any] = field(default=frozenset(), init=False, repr=False, compare=False)

    @property
    def version(self) -> int:
        """The newest version."""
        return self.step // _STEPS_PER_VERSION

    def copy(self) -> DataWorld:
        """The same world, to continue with another policy."""
        return replace(self, fresh=list(self.fresh), kept=list(self.kept))

    def advance(self, policy: Any, steps: int) -> list[Decision]:
        """Run ``steps`` steps; returns the decisions of the policy."""
        if policy is not self._policy:  # to ask a protocol takes longer than the rest of a step
            self._policy = policy
            self._hooks = frozenset(hook for hook in _HOOKS if isinstance(policy, hook))
        made: list[Decision] = []
        for _ in range(steps):
            made += self._advance(policy)
        return made

    def _advance(self, policy: Any) -> list[Decision]:
        made: list[Decision] = []
        if OnVersion in self._hooks and self.step % _STEPS_PER_VERSION == 0:
            policy.on_version("solver", self.version)
        prompt = self.prompts[self.step % len(self.prompts)]
        admitted = True
        if Admit in self._hooks:
            admitted = policy.admit(prompt)
            made.append(("admit", admitted))
            if not admitted and Explain in self._hooks:
                made.append(("why_refused", policy.why_refused(prompt)))
        if admitted:
            if Follow in self._hooks:
                policy.on_admitted(prompt)
            made += self._finish(policy, self.group(prompt))
            if Follow in self._hooks:
                accepted = all(
                    getattr(answer, "accepted", answer) for kind, answer in made if kind == "accept"
                )
                policy.on_ended(prompt, "accepted" if accepted else "rejected")
        if len(self.fresh) >= 2 * COUNT:
            made += self._serve(policy)
        self.step += 1
        return made

    def group(self, prompt: Prompt) -> GroupSummary:
        """The group of ``prompt`` that finishes at this step."""
        rewards = _rewards(self.seed, self.step)
        return summary(prompt, rewards, self.version)

    def _finish(self, policy: Any, group: GroupSummary) -> list[Decision]:
        made: list[Decision] = []
        if Accept in self._hooks:
            verdict = policy.accept(group)
            made.append(("accept", verdict))
            if not getattr(verdict, "accepted", verdict):
                return made
        stamped = group_statistics(group.rewards)
        for index, reward in enumerate(group.rewards):
            self.arrivals += 1
            row = BufferedRow(
                arrival=self.arrivals,
                prompt_id=group.prompt.id,
                min_version=int(group.min_versions[index]),
                length=int(group.lengths[index]),
                reward=float(reward),
                group_size=stamped.size,
                group_mean=stamped.mean,
                group_std=stamped.std,
            )
            key = 0.0
            if Key in self._hooks:
                key = policy.key(row)
                made.append(("key", key))
            self.fresh.append((key, row))
        self.fresh.sort(key=lambda entry: (entry[0], entry[1].arrival))
        return made

    def _serve(self, policy: Any) -> list[Decision]:
        made: list[Decision] = []
        fresh = [row for _, row in self.fresh]
        if Arrange in self._hooks:
            fresh = policy.arrange(fresh, self.version)
            made.append(("arrange", [row.arrival for row in fresh]))
        rows: list[BufferedRow] | None = fresh
        if Draw in self._hooks:
            rows = policy.draw(COUNT, fresh, list(self.kept), self.version)
            made.append(("draw", None if rows is None else [row.arrival for row in rows]))
        if Borrow in self._hooks:
            lent = [replace(row, arrival=row.arrival + 1000) for row in self.kept]
            borrowed = policy.borrow(COUNT, lent, self.version)
            made.append(("borrow", [row.arrival for row in borrowed]))
        self.served((rows or [])[:COUNT])
        return made

    def served(self, rows: Sequence[BufferedRow]) -> None:
        """Add rows that a batch took to those kept, in the order in which they were served first; the oldest fall
        out."""
        again = {row.arrival: replace(row, times_served=row.times_served + 1) for row in rows}
        self.fresh = [entry for entry in self.fresh if entry[1].arrival not in again]
        self.kept = [again.pop(row.arrival, row) for row in self.kept]
        self.kept += again.values()
        del self.kept[:-_KEPT]


@lru_cache(maxsize=1024)
def _rewards(seed: int, step: int) -> tuple[float, ...]:
    """The rewards of the group of that step; many worlds run the same steps."""
    rng = np.random.default_rng([seed, step])
    drawn = rng.random(GROUP)
    rewards = [
        np.where(drawn < 0.5, 0.0, 1.0) * [1, 1, 1, 0] + [0, 0, 0, 1],
        np.ones(GROUP),
        drawn,
        np.zeros(GROUP),
        drawn[:1],
        np.where(drawn < drawn.mean(), -1.0, 1.0),
    ][int(rng.integers(6))]
    return tuple(rewards.tolist())


def summary(prompt: Prompt, rewards: Any, version: int, truncated: bool = False) -> GroupSummary:
    """A group with those rewards, sampled by ``version`` and the one before."""
    rewards = np.array(rewards, dtype=np.float64)
    size = len(rewards)
    lengths = np.arange(10, 10 + size, dtype=np.int32)
    return GroupSummary(
        policy="solver",
        prompt=prompt,
        rewards=rewards,
        lengths=lengths,
        trained=lengths - np.int32(6),
        min_versions=np.maximum(version - np.arange(size, dtype=np.int32) % 2, 0).astype(np.int32),
        truncated=np.full(size, truncated),
        version=version,
    )


def rows_of(count: int, version: int = 3) -> list[BufferedRow]:
    """Rows of groups of two in a buffer, in order of arrival."""
    return [
        BufferedRow(n, f"p{n // 2}", version - n % 2, 20 + n, float(n % 2), 2, 0.5, math.sqrt(0.5))
        for n in range(count)
    ]


def through_json(state: Any) -> Any:
    """The state as a checkpoint gives it back; raises TypeError or ValueError if it is not JSON-like."""
    return json.loads(json.dumps(state, allow_nan=False))


def first_difference(one: list[Decision], other: list[Decision]) -> str:
    """The first decision in which two histories differ; empty if they are the same."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return (
                f"decision {index}: {left[0]} gave {left[1]!r}, now {right[0]} gives {right[1]!r}"
            )
    return "" if len(one) == len(other) else f"{len(one)} decisions, now {len(other)}"
