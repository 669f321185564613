"""Leased slots, which wait for episodes, and the episodes that were opened in them."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Literal

from astraflow_core.errors import WorkflowError
from astraflow_gateway.episode import Episode
from astraflow_gateway.requests import BadRequest
from astraflow_gateway.rewards import AgentReport, rewards_of
from astraflow_gateway.server import Gateway

Outcome = Literal["rewarded", "abandoned", "idle", "late", "failed", "ended"]

REASONS: dict[Outcome, str] = {
    "rewarded": "it was rewarded before",
    "abandoned": "it was abandoned",
    "idle": "nothing was asked for longer than [workflow] idle_s",
    "late": "it lasted longer than [workflow] deadline_s",
    "failed": "an engine failed",
    "ended": "the run took its slot back: it ends, or missed [run] episode_deadline_s",
}
KEPT_PAST = 4096
"""Episodes that are over whose end is remembered."""


@dataclass(eq=False)
class Slot:
    """An episode that a client may open, has opened, or that has ended. ``trained``: it was leased for training."""

    episode: Episode
    trained: bool = True
    id: str = ""
    key: str = ""
    report: AgentReport | None = None
    signs: int = 0
    """Rewards that came so far."""
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: Outcome | None = None

    @property
    def policies(self) -> list[str]:
        """Those that a reward is for: what was sampled and is trained."""
        if not self.trained:
            return list(self.episode.engines)
        return list(dict.fromkeys(each.policy for each in self.episode.sequences()))


@dataclass(frozen=True, slots=True)
class _Past:
    outcome: Outcome
    report: AgentReport | None
    reply: dict[str, Any]


class Slots:
    """All slots of a RaaS. Raises :class:`BadRequest` for what a client does wrong."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._free: deque[Slot] = deque()
        self._open: dict[str, Slot] = {}
        self._past: OrderedDict[str, _Past] = OrderedDict()
        self.counts: Counter[str] = Counter()

    def offer(self, slot: Slot) -> None:
        """``slot`` may be opened from now on."""
        self._free.append(slot)

    def withdraw(self, slot: Slot) -> None:
        """Withdraw the slot, so that it cannot be opened any more."""
        if slot in self._free:
            self._free.remove(slot)

    def take(self) -> Slot | None:
        """The slot that has waited longest, opened; ``None`` if none is free."""
        if not self._free:
            return None
        slot = self._free.popleft()
        self.open(slot)
        return slot

    def open(self, slot: Slot) -> None:
        """Give ``slot`` an id and a key, and let requests in."""
        slot.id, slot.key = (
            f"episode-{secrets.token_hex(8)}",
            self._gateway.begin(slot.episode),
        )
        self._open[slot.id] = slot
        slot.opened.set()

    def reward(self, id: str, report: AgentReport, done: bool) -> dict[str, Any]:
        """Reward an episode; the newest value counts, and with ``done`` the episode is over. The same last reward again
        gets the same reply."""
        past = self._past.get(id)
        if past is not None and past.outcome == "rewarded" and done and past.report == report:
            return past.reply
        slot = self._found(id)
        policies = slot.policies
        if not policies:
            raise BadRequest(
                f"nothing was sampled in {id} that is trained, so that there is nothing to reward; DELETE abandons it",
                409,
                "nothing_sampled",
            )
        try:
            rewards = rewards_of(report.reward, policies, "the reward")
        except WorkflowError as error:
            raise BadRequest(str(error), param="reward") from error
        if missing := [policy for policy in policies if policy not in rewards]:
            raise BadRequest(f"rewards has none for {', '.join(missing)}", param="rewards")
        try:
            slot.episode.credit(report.turns, "the request")
        except WorkflowError as error:
            raise BadRequest(str(error), param="turns") from error
        slot.report, slot.signs = report, slot.signs + 1
        told = {"id": id, "trained": slot.trained, "rewards": rewards, "done": done}
        if done:
            self.finish(slot, "rewarded", told)
        return told

    def abandon(self, id: str) -> None:
        """End an episode that is not to be trained."""
        self.finish(self._found(id), "abandoned")

    def finish(self, slot: Slot, outcome: Outcome, reply: dict[str, Any] | None = None) -> None:
        """``slot`` is over, unless it was before."""
        if slot.outcome is not None:
            return
        slot.outcome = outcome
        self.counts[outcome] += 1
        del self._open[slot.id]
        self._past[slot.id] = _Past(outcome, slot.report, reply or {})
        if len(self._past) > KEPT_PAST:
            self._past.popitem(last=False)
        slot.over.set()

    async def close(self, slot: Slot) -> None:
        """Refuse further requests and end those under way; the episode is over if it was not."""
        self.withdraw(slot)
        if slot.opened.is_set():
            self.finish(slot, "ended")
            await self._gateway.end(slot.key)

    def status(self) -> dict[str, int]:
        """Number of episodes: ``free`` slots, ``open``, ``untrained`` of those, and by outcome."""
        untrained = sum(not slot.trained for slot in self._open.values())
        found = {"free": len(self._free), "open": len(self._open), "untrained": untrained}
        return found | {outcome: self.counts[outcome] for outcome in REASONS}

    @property
    def untrained(self) -> int:
        """Episodes that are open and not trained."""
        return self.status()["untrained"]

    def _found(self, id: str) -> Slot:
        if slot := self._open.get(id):
            return slot
        if past := self._past.get(id):
            raise BadRequest(f"{id} is over: {REASONS[past.outcome]}", 409, "episode_over")
        raise BadRequest(
            f"there is no episode {id:.80} here: it has ended, or its RaaS was restarted, which ends all "
            "open episodes",
            404,
            "episode_not_found",
        )
