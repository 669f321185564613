"""Brings versions of one policy to one rollout service of the public protocol, each under its own number."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from astraflow_contrib_compat.weights.flat import FlatWeights
from astraflow_contrib_compat.weights.sender import WeightSender
from astraflow_core.errors import WeightsError
from astraflow_core.protocols.transport import Receiver
from astraflow_core.types import Announcement, WeightSource

log = logging.getLogger("astraflow.compat")
REMEMBERED = 16
"""Announcements and numbers that are kept."""


class WeightUpdates:
    """The versions of ``policy``. The public protocol loads only a number above the last one, so each delivery has the next
    number, whatever version it is: an older one for an evaluation, or one of a run that went on from an older journal.
    ``notify(number, endpoint)`` makes the RaaS fetch from ``sender`` and returns what it answered."""

    def __init__(
        self,
        policy: str,
        receiver: Receiver,
        sender: WeightSender,
        notify: Callable[[int], Awaitable[Any]],
        deadline_s: float,
    ) -> None:
        self.policy, self.serving, self.seen = policy, -1, -1
        self._pinned: int | None = None
        self.held: Counter[int] = Counter()
        self._receiver, self._sender, self._notify = receiver, sender, notify
        self._deadline_s = deadline_s
        self._announced: dict[int, Announcement] = {}
        self._versions: dict[int, int] = {}
        self._digest = ""
        self._number = 0
        self._history = 0
        self._source: WeightSource | None = None

    @property
    def digest(self) -> str:
        """The digest of the version served; empty before the first."""
        return self._digest if self.serving >= 0 else ""

    @property
    def wanted(self) -> int:
        """The version that an evaluation task needs, else the pinned one, else the newest."""
        if self.held:
            return min(self.held)
        return self.seen if self._pinned is None else self._pinned

    @property
    def pending(self) -> bool:
        """Whether another version than the one served is wanted, and was announced."""
        return self.wanted != self.serving and self.wanted in self._announced

    def on_announced(self, announcement: Announcement) -> bool:
        """Record an announced version; whether it is new."""
        new = announcement.version not in self._announced
        self._announced[announcement.version] = announcement
        self.seen = max(self.seen, announcement.version)
        for version in sorted(self._announced.keys() - {self._pinned, *self.held})[:-REMEMBERED]:
            del self._announced[version]
        return new

    def pin(self, version: int | None) -> bool:
        """Serve exactly ``version`` until the pin is gone (``None``); whether that is new."""
        new = version != self._pinned
        self._pinned = version
        return new

    def discard(self) -> None:
        """Forget all versions: they are not of this run."""
        self.serving = self.seen = -1
        self._history += 1
        self._announced.clear()
        self._versions.clear()

    def version_of(self, number: int) -> int:
        """The version that was delivered under a number; KeyError if none was."""
        return self._versions[number]

    async def update(self) -> None:
        """Deliver the wanted version. Raises :class:`WeightsError`, and whatever ``notify`` raises, if it was not."""
        announcement, history = self._announced[self.wanted], self._history
        source = await asyncio.to_thread(self._receiver.fetch, announcement, self._deadline_s)
        try:
            if source.kind != "full":
                raise WeightsError(
                    "an adapter was published; the public weight path has whole models"
                )
            flat = await asyncio.to_thread(FlatWeights.of, source)
            self._number += 1
            number = self._number
            async with self._sender.offering(number, flat) as offer:
                offer.on_delivery = lambda: self._delivered(number, announcement.version, history)
                answer = await self._notify(number)
                _check(answer, number)
                if not offer.delivered:
                    raise WeightsError(
                        f"the RaaS says that it has version {number}, but {offer.problem}: if it has weights of another "
                        "run, restart it"
                    )
        except BaseException:
            self._sender.forget()
            await asyncio.to_thread(self._receiver.release, source)
            raise
        before, self._source = self._source, source
        if before is not None:
            await asyncio.to_thread(self._receiver.release, before)
        if history == self._history:
            self.serving, self._digest = announcement.version, announcement.digest

    def _delivered(self, number: int, version: int, history: int) -> None:
        if history == self._history:
            self._versions[number] = version
            for old in sorted(self._versions)[:-REMEMBERED]:
                del self._versions[old]

    async def close(self) -> None:
        """Release what was fetched."""
        self._sender.close()
        await asyncio.to_thread(self._receiver.close)


def _check(answer: Any, number: int) -> None:
    """What the RaaS says of the update, which its envelope does not."""
    if not isinstance(answer, dict) or answer.get("ok") is not True:
        told = answer if isinstance(answer, dict) else {}
        reason = told.get("reason") or told.get("pull_result") or "it does not say why"
        raise WeightsError(f"the RaaS did not load version {number}: {str(reason)[:300]}")
    if answer.get("pulled") is False:
        raise WeightsError(
            f"the RaaS did not load version {number}: {str(answer.get('reason'))[:300]}; if it has weights of another run, "
            "restart it"
        )
