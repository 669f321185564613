"""Builds both halves of a transport for the suite, here and in processes that can be killed.

As a program: ``python -m … JSON`` plays one half until its standard input ends.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from astraflow_core.catalog import Catalog
from astraflow_core.config.models import ComponentTable
from astraflow_core.protocols.transport import (
    Publisher,
    Receiver,
    ShardedTransport,
    ShardPublisher,
    Transport,
)
from astraflow_core.types import Announcement, ComponentContext, Manifest, Ranks, RunInfo
from astraflow_testing.conformance._transports.tensors import model

TOKEN = "the-token-of-the-run"
POLICY = "solver"


def build(
    table: Mapping[str, Any],
    directory: Path,
    role: str,
    token: str = TOKEN,
    ranks: Ranks = Ranks(),  # noqa: B008 (frozen)
) -> Transport:
    """The transport that the table names, as a process of ``role`` with that run directory has it."""
    run = RunInfo("conformance", 0, 10, 2, (POLICY,), directory)
    context = ComponentContext(run, role, POLICY, 0, directory / "state" / role, token, ranks)
    transport: Transport = Catalog.discover().build("transport", ComponentTable(**table), context)
    return transport


def announcement(manifest: Manifest, endpoints: tuple[str, ...], **changes: object) -> Announcement:
    """The announcement that a trainer would make."""
    told: dict[str, Any] = {
        "policy": manifest.policy,
        "version": manifest.version,
        "transport": "conformance",
        "endpoints": endpoints,
        "digest": manifest.digest,
        "size": manifest.size,
    }
    return Announcement(**(told | changes))


class Peer:
    """One half of a transport in a process of its own."""

    def __init__(self, **order: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps({"path": sys.path, **order})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a line that waits in a buffer of ours is not seen by select
        )

    def told(self, deadline_s: float = 30) -> dict[str, Any]:
        """The next line of its output."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], deadline_s)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            raise TimeoutError(f"the other process sent nothing in {deadline_s} s")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """Kill it, as in a crash."""
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        """End it and its pipes."""
        self.process.kill()
        self.process.communicate(timeout=10)


class TransportRig:
    """Publishers, receivers and peers of one test, closed when it ends."""

    def __init__(self, table: Mapping[str, Any], folder: Path, stack: ExitStack) -> None:
        self.table, self.folder, self._stack = dict(table), folder, stack

    def publisher(self) -> Publisher:
        """A publisher."""
        made = build(self.table, self.folder, "trainer").publisher()
        return self._stack.enter_context(closing(made))

    def shard_publisher(
        self, rank: int, ranks: int, share: Callable[[bytes], list[bytes]]
    ) -> ShardPublisher:
        """The half of one of several ranks."""
        place = Ranks(rank, ranks, rank, deadline_s=60.0)
        made = build(self.table, self.folder, "trainer", TOKEN, place)
        publisher = cast(ShardedTransport, made).shard_publisher(share)
        return self._stack.enter_context(closing(publisher))

    def receiver(self, role: str = "raas", token: str = TOKEN) -> Receiver:
        """A receiver; those of one role share a folder."""
        made = build(self.table, self.folder, role, token).receiver()
        return self._stack.enter_context(closing(made))

    def publishing_peer(self) -> tuple[Peer, Announcement]:
        """A process that serves ``model(1)`` as version 1."""
        peer = self._peer(half="publisher", directory=str(self.folder))
        told = peer.told()
        return peer, Announcement(**(told | {"endpoints": tuple(told["endpoints"])}))

    def receiving_peer(self, directory: Path, wanted: Announcement, deadline_s: float) -> Peer:
        """A process that prints ``{"fetching": true}``, fetches, and prints the result."""
        return self._peer(
            half="receiver", directory=str(directory), wanted=asdict(wanted), deadline_s=deadline_s
        )

    def _peer(self, **order: object) -> Peer:
        return self._stack.enter_context(closing(Peer(table=self.table, **order)))


def _play(order: dict[str, Any]) -> None:
    transport = build(order["table"], Path(order["directory"]), order["half"])
    if order["half"] == "publisher":
        with closing(transport.publisher()) as publisher:
            manifest = publisher.publish(1, model(1))
            _send(asdict(announcement(manifest, publisher.endpoints)))
            sys.stdin.read()
        return
    wanted = order["wanted"]
    wanted["endpoints"] = tuple(wanted["endpoints"])
    with closing(transport.receiver()) as receiver:
        _send({"fetching": True})
        source = receiver.fetch(Announcement(**wanted), order["deadline_s"])
        _send({"path": str(source.path), "version": source.version, "digest": source.digest})
        sys.stdin.read()


def _send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _order = json.loads(sys.argv[1])
    sys.path[:] = _order["path"]
    _play(_order)
