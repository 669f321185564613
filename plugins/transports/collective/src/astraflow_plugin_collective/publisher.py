"""The trainer's half: HTTP, and a round of the broadcast for each whole version."""

from __future__ import annotations

from functools import partial

from astraflow_core.errors import Refused
from astraflow_core.types import Delivery
from astraflow_plugin_collective.round import Manner, Round
from astraflow_weights.direct.delivery_server import Joining
from astraflow_weights.direct.publisher import DirectHttpPublisher

CLOSE_S = 5.0


class CollectivePublisher(DirectHttpPublisher):
    """Publishing waits for the snapshot only; the round continues in a thread. A new version ends the window of the previous
    one; a broadcast that has started continues."""

    def __init__(self, policy: str, token: str, port: int, manner: Manner) -> None:
        self._manner = manner
        self._round: Round | None = None
        super().__init__(policy, token, host=manner.host, port=port, advertise=manner.address)

    def begin(self, version: int) -> None:
        """Open the version's window."""
        before = self._round
        if before is not None:
            before.close(f"superseded by version {version}")
        expected = frozenset(before.members or before.expected) if before else frozenset()
        self._round = Round(version, partial(self.reading, version), self._manner, expected)
        self._round.start()

    def meet(self, version: int, asked: Joining) -> Delivery:
        """A place in the version's broadcast, once its window has ended."""
        found = self._round
        if found is None or found.version != version:
            raise Refused(404, f"version {version} is not broadcast; fetch it by HTTP")
        if not asked.workers:
            raise Refused(409, "an engine without workers cannot join a broadcast")
        return found.join(asked.member, asked.workers)

    def close(self) -> None:
        """End the window, wait a little for a broadcast that has begun, and stop serving."""
        ended, self._round = self._round, None
        if ended is not None:
            ended.close("the trainer ends")
            ended.join_thread(CLOSE_S)
        super().close()
