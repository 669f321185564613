"""One version's broadcast: who joins within the window, then the sending, in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from astraflow_core.errors import Refused, WeightsError
from astraflow_core.types import Bucket, Delivery, Rendezvous
from astraflow_torch_weights.group import BroadcastGroup, GroupRendezvous
from astraflow_weights.buckets import plan
from astraflow_weights.snapshot import Snapshot

log = logging.getLogger(__name__)
MAX_MEMBERS = 1024


@dataclass(frozen=True, slots=True)
class Manner:
    """How a round is held: see the keys of the transport. ``address`` is what others reach ``host`` by."""

    host: str
    address: str
    backend: str
    window_s: float
    deadline_s: float
    bucket_bytes: int


class Round:
    """Runs in its own thread from :meth:`start` on. ``expected`` are the members of the previous round; the window
    ends once all of them have joined. ``members`` are those that joined."""

    def __init__(
        self,
        version: int,
        snapshot: Callable[[], AbstractContextManager[Snapshot]],
        manner: Manner,
        expected: frozenset[str],
    ) -> None:
        self.version, self.expected = version, expected
        self.members: dict[str, int] = {}
        self._snapshot, self._manner = snapshot, manner
        self._changed = threading.Condition()
        self._closed: str = ""
        self._deliveries: dict[str, Delivery] = {}
        self._thread = threading.Thread(target=self._run, name=f"broadcast-{version}", daemon=True)

    def start(self) -> None:
        """Open the window."""
        self._thread.start()

    def close(self, reason: str) -> None:
        """End the window, if it is still open, without a broadcast."""
        with self._changed:
            self._end(reason)

    def _end(self, reason: str) -> None:
        self._closed = self._closed or reason
        self._changed.notify_all()

    def join_thread(self, seconds: float) -> None:
        """Wait for the end of the round."""
        self._thread.join(seconds)

    def join(self, member: str, workers: int) -> Delivery:
        """A place for ``member``, once the window has ended. Raises :class:`Refused` if there is none (any longer)."""
        with self._changed:
            if self._closed:
                raise self._refusal()
            if len(self.members) >= MAX_MEMBERS:
                raise Refused(429, f"version {self.version} has {MAX_MEMBERS} receivers already")
            self.members[member] = workers
            self._changed.notify_all()
            patience = self._manner.window_s + self._manner.deadline_s
            self._changed.wait_for(lambda: self._closed, patience)
            if member not in self._deliveries:
                raise self._refusal()
            return self._deliveries[member]

    def _refusal(self) -> Refused:
        return Refused(409, f"version {self.version}: {self._closed or 'not ready in time'}")

    def _run(self) -> None:
        with self._changed:
            self._changed.wait_for(self._is_complete, self._manner.window_s)
            if self._closed or not self.members:
                self._end("its window has ended; fetch it by HTTP")
                return
        began = time.monotonic()
        try:
            with self._snapshot() as snapshot:
                outcomes = self._broadcast(snapshot, began + self._manner.deadline_s)
        except (WeightsError, Refused, OSError) as error:
            self.close(f"no broadcast: {error}")
            log.warning("version %d was not broadcast: %s", self.version, error)
            return
        for name, said in outcomes.items():
            if said != "ok":
                log.warning("version %d was not received by %s: %s", self.version, name, said)
        good = sum(said == "ok" for said in outcomes.values())
        seconds = time.monotonic() - began
        log.info("broadcast version %d to %d places in %.2f s", self.version, good, seconds)

    def _is_complete(self) -> bool:
        return bool(self._closed or (self.expected and self.expected <= self.members.keys()))

    def _broadcast(self, snapshot: Snapshot, deadline: float) -> dict[str, str]:
        manner = self._manner
        buckets = plan(snapshot, manner.bucket_bytes)
        meeting = GroupRendezvous(manner.host, manner.address, deadline)
        names = self._hand_out(meeting.port, buckets)
        group = meeting.lead(names, manner.backend)
        try:
            start = snapshot.manifest.tensors[0].start
            for bucket in buckets:
                with snapshot.data[start : start + bucket.size] as data:
                    send(group, data, manner.backend)
                start += bucket.size
            outcomes: dict[str, str] = group.outcomes(names)
            return outcomes
        finally:
            group.close()

    def _hand_out(self, port: int, buckets: tuple[Bucket, ...]) -> dict[int, str]:
        """End the window and give each member its ranks; the names of all ranks but ours."""
        names: dict[int, str] = {}
        with self._changed:
            if self._closed:
                raise WeightsError(self._closed)
            size = 1 + sum(self.members.values())
            for member, workers in self.members.items():
                place = Rendezvous(self._manner.address, port, len(names) + 1, size)
                self._deliveries[member] = Delivery(self.version, buckets, place)
                for worker in range(workers):
                    names[len(names) + 1] = member if workers == 1 else f"{member}, worker {worker}"
            self._end("its window has ended; fetch it by HTTP")
        return names


def backend_of(wanted: str) -> str:
    """The backend that ``wanted`` means on this machine."""
    if wanted != "auto":
        return wanted
    return "nccl" if torch.cuda.is_available() else "gloo"


def send(group: BroadcastGroup, data: memoryview, backend: str) -> None:
    """Broadcast a copy of ``data``: the snapshot's buffer is never lent to a backend that may outlive it."""
    buffer = torch.frombuffer(data, dtype=torch.uint8).clone()
    group.broadcast(buffer.cuda() if backend == "nccl" else buffer)
