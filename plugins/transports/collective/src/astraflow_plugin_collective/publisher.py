"""The trainer's half: HTTP, and a round of the broadcast for each whole version."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from functools import partial

from astraflow_core.types import ExportedTensor, Manifest
from astraflow_core.weights.publisher import HttpPublisher
from astraflow_plugin_collective.desk import Desk
from astraflow_plugin_collective.names import OBJECT
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
        self._desk = Desk(manner.host, policy, token, self._round_of)
        self._listening = threading.Thread(
            target=self._desk.serve_forever, args=(0.1,), daemon=True
        )
        self._listening.start()
        place = manner.address if ":" not in manner.address else f"[{manner.address}]"
        join = f"http://{place}:{self._desk.server_address[1]}/v1/collective/{policy}"
        self._where = json.dumps({"join": join}).encode()

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
            self.attach(version, OBJECT, self._where)
        return manifest

    def close(self) -> None:
        """End the window, wait a little for a broadcast that has begun, and stop serving."""
        ended, self._round = self._round, None
        if ended is not None:
            ended.close("the trainer ends")
            ended.join_thread(CLOSE_S)
        if self._listening.is_alive():
            self._desk.shutdown()
            self._listening.join(CLOSE_S)
        self._desk.server_close()
        super().close()

    def _round_of(self, version: int) -> Round | None:
        found = self._round
        return found if found is not None and found.version == version else None


def _bare(address: str) -> str:
    return address.strip("[]")
