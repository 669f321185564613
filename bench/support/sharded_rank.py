"""Ranks of a trainer, each a process that holds its rows of a model and publishes them with the others.

    python -m bench.support.sharded_rank ORDER

``ORDER`` is JSON: ``mode`` ("sharded": each serves its blocks; "gathered": rank 0 serves what the others send it),
``rank``, ``ranks`` and ``matrices``. Messages between ranks of ``sharded`` go through their parent.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Announcement, ExportedTensor, Manifest, Ranks, TensorSlice
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_weights.publish.publisher import HttpPublisher
from astraflow_weights.shard_plan import ElementRange, make_plan
from astraflow_weights.shards.publisher import HttpShardPublisher
from astraflow_weights.snapshot import BLOCK_SIZE
from bench.co_located import POLICY, Mapper
from bench.support.obedient import ANSWER_S, Obedient
from bench.support.timing import cpu_of

TOKEN = "a-token"
"""That of :func:`bench.co_located.transport`."""
Layout = list[tuple[str, str, tuple[int, ...]]]


def layout(matrices: int) -> Layout:
    """Name, dtype and shape of every tensor: matrices of 16 MiB, each with a norm."""
    found: Layout = []
    for number in range(matrices):
        found.append((f"layers.{number:03}.weight", "BF16", (2048, 4096)))
        found.append((f"layers.{number:03}.norm", "F32", (4096,)))
    return found


def span(shape: tuple[int, ...], rank: int, ranks: int) -> tuple[int, int]:
    """First element of a rank's rows, and the one after the last."""
    row = math.prod(shape[1:])
    return shape[0] * rank // ranks * row, shape[0] * (rank + 1) // ranks * row


def size_of(tensor: tuple[str, str, tuple[int, ...]]) -> int:
    """In bytes."""
    return math.prod(tensor[2]) * DTYPE_BYTES[tensor[1]]


@dataclass(frozen=True)
class Seen:
    """Of one version: seconds until all had published, CPU seconds of all processes, bytes between ranks."""

    publish_s: float
    cpu_s: float
    between: int


class Group:
    """The ranks as their parent sees them, and the process that receives what they publish. ``size``: of the model;
    ``seen``: of each version."""

    def __init__(self, mode: str, ranks: int, matrices: int, receiver: Mapper) -> None:
        self._mode, self._receiver, self._version = mode, receiver, 0
        tensors = layout(matrices)
        self.size = sum(map(size_of, tensors))
        self.seen: list[Seen] = []
        self._ranks = [
            Obedient(__name__, mode=mode, rank=rank, ranks=ranks, matrices=matrices)
            for rank in range(ranks)
        ]
        at = self._ranks[0].answer()["at"]
        for process in self._ranks[1:]:
            process.answer()
            process.order(at=at)
        self._moved = self.size - self.size // ranks
        if mode == "sharded":
            said = [
                [ElementRange(*tensor, *span(tensor[2], rank, ranks)) for tensor in tensors]
                for rank in range(ranks)
            ]
            plan = make_plan("the model", said, BLOCK_SIZE)
            self._moved = sum(p.size for rank in range(ranks) for p in plan.parcels(rank))

    def cycle(self) -> float:
        """Publish a version; the wall seconds until the receiver has verified it."""
        self._version += 1
        told = 0
        before, began = self._cpu(), time.perf_counter()
        for process in self._ranks:
            process.order(publish=self._version)
        while "said" in (answers := [process.answer() for process in self._ranks])[0]:
            heard = [each["said"] for each in answers]
            told += sum(len(each) // 2 for each in heard) * (len(heard) - 1)
            for process in self._ranks:
                process.order(heard=heard)
        publish_s = time.perf_counter() - began
        done = answers[0]
        self._receiver.map(
            Announcement(
                POLICY,
                self._version,
                "http",
                tuple(done["endpoints"]),
                done["digest"],
                done["size"],
            )
        )
        wall = time.perf_counter() - began
        self.seen.append(Seen(publish_s, self._cpu() - before, self._moved + told))
        return wall

    def peak(self) -> int:
        """The most bytes that any rank had beyond its rows."""
        for process in self._ranks:
            process.order(peak=True)
        return max(int(process.answer()["peak"]) for process in self._ranks)

    def close(self) -> None:
        """End every rank."""
        for process in self._ranks:
            process.close()

    def _cpu(self) -> float:
        pids = [self._receiver.process.pid, *(each.process.pid for each in self._ranks)]
        return sum(map(cpu_of, pids))


def _resident(which: str) -> int:
    """Bytes of this process: ``VmRSS`` now, ``VmHWM`` the most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(which):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"the kernel tells no {which}")


class _Rank:
    """One of the ranks, in its process."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.rank, self.ranks = order["rank"], order["ranks"]
        self.tensors = layout(order["matrices"])
        generator = np.random.default_rng(self.rank)
        self.rows: dict[str, npt.NDArray[np.uint8]] = {}
        for name, dtype, shape in self.tensors:
            start, stop = span(shape, self.rank, self.ranks)
            count = (stop - start) * DTYPE_BYTES[dtype]
            self.rows[name] = generator.integers(0, 256, count, dtype=np.uint8)

    def slices(self) -> Iterator[TensorSlice]:
        for name, dtype, shape in self.tensors:
            start, _ = span(shape, self.rank, self.ranks)
            yield TensorSlice(name, dtype, shape, start, self.rows[name])

    def gathered(self, others: list[socket.socket]) -> Iterator[ExportedTensor]:
        """On rank 0: its rows and those that the others send, tensor by tensor."""
        for name, dtype, shape in self.tensors:
            whole = np.empty(size_of((name, dtype, shape)), np.uint8)
            whole[: len(self.rows[name])] = self.rows[name]
            for number, other in enumerate(others, 1):
                start, stop = (at * DTYPE_BYTES[dtype] for at in span(shape, number, self.ranks))
                view = whole.data[start:stop]
                while view:
                    view = view[other.recv_into(view, 0, socket.MSG_WAITALL) :]
            yield ExportedTensor(name, dtype, shape, whole)


def _listen() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)
    order: dict[str, Any] = json.loads(line)
    return order


def _report(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _share(mine: bytes) -> list[bytes]:
    _report(said=mine.hex())
    return [bytes.fromhex(each) for each in _listen()["heard"]]


def _published(manifest: Manifest, endpoints: tuple[str, ...]) -> None:
    _report(digest=manifest.digest, size=manifest.size, endpoints=endpoints)


def _obey(order: dict[str, Any]) -> None:
    own = _Rank(order)
    listener = socket.create_server(("127.0.0.1", 0))
    _report(at=listener.getsockname()[1])
    at = _listen()["at"] if own.rank else 0
    others: list[socket.socket] = []
    publisher: Any = None
    if order["mode"] == "sharded":
        ranks = Ranks(own.rank, own.ranks, own.rank, ANSWER_S)
        publisher = HttpShardPublisher(
            POLICY, TOKEN, ranks, _share, host="127.0.0.1", port=0, advertise=None
        )
    elif own.rank:
        others = [socket.create_connection(("127.0.0.1", at), ANSWER_S)]
        others[0].settimeout(None)
        others[0].sendall(bytes([own.rank]))
    else:
        publisher = HttpPublisher(POLICY, TOKEN, host="127.0.0.1", port=0, advertise=None)
        joined = [listener.accept()[0] for _ in range(own.ranks - 1)]
        others = [each for _, each in sorted((each.recv(1)[0], each) for each in joined)]
    before = _resident("VmRSS")
    while True:
        order_now = _listen()
        if "peak" in order_now:
            _report(peak=_resident("VmHWM") - before)
            continue
        version = order_now["publish"]
        if isinstance(publisher, HttpShardPublisher):
            manifest = publisher.publish(version, own.slices, version - 1 or None)
        elif publisher is not None:
            manifest = publisher.publish(version, own.gathered(others), version - 1 or None)
        else:
            for name, _, _ in own.tensors:
                others[0].sendall(own.rows[name].data)
            _report()
            continue
        publisher.retain(frozenset())
        _published(manifest, publisher.endpoints)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _obey(json.loads(sys.argv[1]))
