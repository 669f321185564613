"""Leased places, which wait for episodes, and the episodes that were opened in them."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Literal

from astraflow_core.errors import WorkflowError
from astraflow_gateway.episode import Episode
from astraflow_gateway.requests import BadRequest
from astraflow_gateway.rewards import rewards_of
from astraflow_gateway.server import Gateway

Outcome = Literal["rewarded", "abandoned", "idle", "late", "failed", "ended"]

REASONS: dict[Outcome, str] = {
    "rewarded": "it was rewarded before",
    "abandoned": "it was abandoned",
    "idle": "nothing was asked for longer than [workflow] idle_s",
    "late": "it lasted longer than [workflow] deadline_s",
    "failed": "an engine failed",
    "ended": "the run took its place back: it ends, or missed [run] episode_deadline_s",
}
KEPT_PAST = 4096
"""Episodes that are over whose end is remembered."""


@dataclass(eq=False)
class Place:
    """An episode that a client may open, has opened, or that has ended. ``trained``: it was leased for training."""

    episode: Episode
    trained: bool = True
    id: str = ""
    key: str = ""
    reward: Any = None
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
    reward: Any
    reply: dict[str, Any]


class Places:
    """All places of a RaaS. Raises :class:`BadRequest` for what a client does wrong."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._free: deque[Place] = deque()
        self._open: dict[str, Place] = {}
        self._past: OrderedDict[str, _Past] = OrderedDict()
        self.counts: Counter[str] = Counter()

    def offer(self, place: Place) -> None:
        """``place`` may be opened from now on."""
        self._free.append(place)

    def withdraw(self, place: Place) -> None:
        """It may not, if it was not yet."""
        if place in self._free:
            self._free.remove(place)

    def take(self) -> Place | None:
        """The place that has waited longest, opened; ``None`` if none is free."""
        if not self._free:
            return None
        place = self._free.popleft()
        self.open(place)
        return place

    def open(self, place: Place) -> None:
        """Give ``place`` an id and a key, and let requests in."""
        place.id, place.key = (
            f"episode-{secrets.token_hex(8)}",
            self._gateway.begin(place.episode),
        )
        self._open[place.id] = place
        place.opened.set()

    def reward(self, id: str, value: Any, done: bool) -> dict[str, Any]:
        """Reward an episode; the newest value counts, and with ``done`` the episode is over. The same last reward again
        gets the same reply."""
        past = self._past.get(id)
        if past is not None and past.outcome == "rewarded" and done and past.reward == value:
            return past.reply
        place = self._found(id)
        policies = place.policies
        if not policies:
            raise BadRequest(
                f"nothing was sampled in {id} that is trained, so that there is nothing to reward; DELETE abandons it",
                409,
                "nothing_sampled",
            )
        try:
            rewards = rewards_of(value, policies, "the reward")
        except WorkflowError as error:
            raise BadRequest(str(error), param="reward") from error
        if missing := [policy for policy in policies if policy not in rewards]:
            raise BadRequest(f"rewards has none for {', '.join(missing)}", param="rewards")
        place.reward, place.signs = value, place.signs + 1
        told = {"id": id, "trained": place.trained, "rewards": rewards, "done": done}
        if done:
            self.finish(place, "rewarded", told)
        return told

    def abandon(self, id: str) -> None:
        """End an episode that is not to be trained."""
        self.finish(self._found(id), "abandoned")

    def finish(self, place: Place, outcome: Outcome, reply: dict[str, Any] | None = None) -> None:
        """``place`` is over, unless it was before."""
        if place.outcome is not None:
            return
        place.outcome = outcome
        self.counts[outcome] += 1
        del self._open[place.id]
        self._past[place.id] = _Past(outcome, place.reward, reply or {})
        if len(self._past) > KEPT_PAST:
            self._past.popitem(last=False)
        place.over.set()

    async def close(self, place: Place) -> None:
        """Refuse further requests and end those under way; the episode is over if it was not."""
        self.withdraw(place)
        if place.opened.is_set():
            self.finish(place, "ended")
            await self._gateway.end(place.key)

    def status(self) -> dict[str, int]:
        """Number of episodes: ``free`` places, ``open``, ``untrained`` of those, and by outcome."""
        untrained = sum(not place.trained for place in self._open.values())
        found = {"free": len(self._free), "open": len(self._open), "untrained": untrained}
        return found | {outcome: self.counts[outcome] for outcome in REASONS}

    @property
    def untrained(self) -> int:
        """Episodes that are open and not trained."""
        return self.status()["untrained"]

    def _found(self, id: str) -> Place:
        if place := self._open.get(id):
            return place
        if past := self._past.get(id):
            raise BadRequest(f"{id} is over: {REASONS[past.outcome]}", 409, "episode_over")
        raise BadRequest(
            f"there is no episode {id:.80} here: it is over for long, or its RaaS was started anew since, which ends all "
            "that were open",
            404,
            "episode_not_found",
        )
