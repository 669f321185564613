"""Environments that tests play."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astraflow_core.errors import EnvironmentFailed
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt


class Echo:
    """Ends after ``turns`` of its task. A turn earns the number of letters of the reply; 'fail' makes it fail."""

    Config: type[Any] | None = None
    capabilities = frozenset({"deterministic"})

    def __init__(self, config: Any, context: ComponentContext) -> None:
        self.turns = self.taken = 0
        self.drawn: list[int] = []

    async def reset(self, task: Prompt, seed: int) -> Observation:
        self.turns, self.taken = int(task.data.get("turns", 2)), 0
        return _said(f"begin {task.data.get('prompt', '')} {seed % 1000}", state="begin")

    async def step(self, action: Action) -> Observation:
        if action.text == "fail":
            raise EnvironmentFailed("network", "the line is dead")
        self.taken += 1
        over = Outcome.FINISHED if action.text == "won" else None
        if self.taken == self.turns:
            over = over or Outcome.TRUNCATED
        told = f"{action.text} {action.truncated}"
        state = None if self.taken % 2 else f"turn {self.taken}"
        metrics = {"letters": float(len(action.text))}
        return _said(told, len(action.text), over, state=state, metrics=metrics)

    async def close(self) -> None:
        self.turns = 0


class Gallery:
    """Shows one of the task's ``pictures``, which are addresses, in each turn: first as a user, then as a tool."""

    capabilities = frozenset({"deterministic"})

    def __init__(self, config: Any, context: ComponentContext) -> None:
        self.left: list[str] = []

    async def reset(self, task: Prompt, seed: int) -> Observation:
        self.left = list(task.data["pictures"])
        return Observation((self._shown("user"),))

    async def step(self, action: Action) -> Observation:
        if not self.left:
            return Observation((), 1.0, Outcome.FINISHED)
        return Observation((self._shown("tool"),))

    async def close(self) -> None:
        self.left = []

    def _shown(self, role: str) -> dict[str, Any]:
        image = {"type": "image_url", "image_url": {"url": self.left.pop(0)}}
        return {"role": role, "content": [{"type": "text", "text": "see "}, image]}


class Debate:
    """'pro' and 'con' take turns until each has had two or one resigns; then a 'judge' names the winner."""

    capabilities = frozenset({"multi_role"})
    roles = ("pro", "con", "judge")

    def __init__(self, config: Any, context: ComponentContext) -> None:
        self.speeches: list[str] = []

    async def reset(self, task: Prompt, seed: int) -> Observation:
        self.speeches = []
        return self._to("pro", f"Speak for: {task.data.get('prompt')}")

    async def step(self, action: Action) -> Observation:
        if action.role == "judge":
            won = action.text if action.text in ("pro", "con") else ""
            rewards = {role: float(role == won) for role in ("pro", "con")}
            return Observation((), rewards, Outcome.FINISHED)
        if action.text == "resign":
            return Observation((), {action.role: -1.0}, Outcome.FINISHED)
        self.speeches.append(f"{action.role}: {action.text}")
        if len(self.speeches) == 4:
            return self._to("judge", "Who has won?\n" + "\n".join(self.speeches), {"con": 0.25})
        other = "con" if action.role == "pro" else "pro"
        return self._to(other, self.speeches[-1])

    async def close(self) -> None:
        self.speeches = []

    def _to(self, role: str, text: str, rewards: Mapping[str, float] | None = None) -> Observation:
        return Observation(({"role": "user", "content": text},), rewards or 0.0, role=role)


def _said(
    text: str, reward: float = 0.0, outcome: Outcome | None = None, **more: Any
) -> Observation:
    return Observation(({"role": "user", "content": text},), reward, outcome, **more)
