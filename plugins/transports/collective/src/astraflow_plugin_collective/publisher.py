"""The trainer's half: HTTP, and a round of the broadcast for each whole version."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from astraflow_core.errors import Refused
from astraflow_core.types import Delivery, ExportedTensor, Manifest
from astraflow_core.weights.desk import OBJECT, Desk, Joining
from astraflow_core.weights.publisher import HttpPublisher
from astraflow_plugin_collective.round import Manner, Round

CLOSE_S = 5.0


class CollectivePublisher(HttpPublisher):
    """Publishing waits for the snapshot only; the round goes on in a thread. A new version ends the window of the one
    before; a broadcast that has begun goes on."""

    def __init__(self, policy: str, token: str, port: int, manner: Manner) -> None:
        super().__init__(
            policy, token, host=manner.host, port=port, advertise=_bare(manner.address)
        )
        self._manner = manner
        self._round: Round | None = None
        self._desk = Desk(manner.host, policy, token, self._meet)

    def publish(
        self,
        version: int,
        tensors: Iterable[ExportedTensor],
        derives_from: int | None = None,
        *,
        base: str | None = None,
    ) -> Manifest:
        """As :meth:`HttpPublisher.publish`; a whole version is broadcast too."""
        manifest = super().publish(version, tensors, derives_from, base=base)
        if manifest.kind == "full" and any(spec.end > spec.start for spec in manifest.tensors):
            before = self._round
            if before is not None:
                before.close(f"overtaken by version {version}")
            expected = frozenset(before.members or before.expected) if before else frozenset()
            self._round = Round(version, partial(self.reading, version), self._manner, expected)
            self._round.start()
            self.attach(version, OBJECT, self._desk.where(_bare(self._manner.address)))
        return manifest

    def close(self) -> None:
        """End the window, wait a little for a broadcast that has begun, and stop serving."""
        ended, self._round = self._round, None
        if ended is not None:
            ended.close("the trainer ends")
            ended.join_thread(CLOSE_S)
        self._desk.close()
        super().close()

    def _meet(self, version: int, asked: Joining) -> Delivery:
        found = self._round
        if found is None or found.version != version:
            raise Refused(404, f"version {version} is not broadcast; fetch it by HTTP")
        if not asked.workers:
            raise Refused(409, "an engine without workers has no place in a broadcast")
        return found.join(asked.member, asked.workers)


def _bare(address: str) -> str:
    return address.strip("[]")
