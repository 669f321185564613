"""Versions and pushes with TLS beside the same without, and the transport zmq with its encryption beside itself without.

Loopback, one receiver, steady state, all sides in turn, client certificates included. ``NAME_over_plain`` is the wall time
without encryption over that with it (its throughput, as a part of that in clear text), ``NAME_cpu_over_plain`` the CPU
seconds of both ends with encryption over those without, medians of pairs. ``http`` and ``zmq`` are whole versions, from the announcement to
the verified file of another process; zmq encrypts in every run, so its plain side exists here only. ``push`` is a group of eight
sequences of 1,024 tokens, posted by the client of a RaaS to a server of a dataflow that decodes it, both in this process.
``link`` are whole versions by ``http`` through a link of 50 MB/s and 1 ms, where this host can make one: what TLS costs where the
network is slower than the processors.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from fastapi import Request, Response

from astraflow_core.types import Announcement, ExportedTensor
from astraflow_testing.tls_files import write_tls
from astraflow_wire.columns import check_columns
from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.http.client import AsyncClient
from astraflow_wire.http.server import Server, create_app, reply
from astraflow_wire.http.tls import RunTls, give_process
from astraflow_wire.messages import Done, SamplingMessage, Task
from bench.co_located import POLICY, Mapper, map_versions, transport
from bench.support.groups import Groups
from bench.support.processes import TOKEN, started
from bench.support.slow_link import ADDRESSES, possible
from bench.support.timing import cpu_of, interleaved, ratio, spread
from bench.support.weight_peer import Peer

SIZES = {True: 32 << 20, False: 128 << 20}
"""Bytes of the model in a quick run and in a whole one."""
PUSHES = {True: 50, False: 400}
"""Groups in a round."""
PAIRS = {True: 3, False: 7}
LINK = (50.0, 1.0)
"""MB/s and ms of the round trip."""
LINK_MEGABYTES = 32.0
_CURVE = ("astraflow_plugin_zmq.line.secure", "astraflow_plugin_zmq.server.secure")


def measure(quick: bool) -> dict[str, float]:
    """Each side in turn, once per round."""
    data = np.random.default_rng(0).integers(0, 1 << 63, SIZES[quick] // 8, dtype=np.int64)
    fields: dict[str, float] = {"model_mb": data.nbytes / 1e6}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        tls = write_tls(folder / "tls", client_certificates=True)
        sides: list[Versions | Pushes] = [
            Versions(stack, kind, folder, data, given)
            for kind in ("http", "zmq")
            for given in (tls, None)
        ]
        sides += [stack.enter_context(closing(Pushes(PUSHES[quick], each))) for each in (tls, None)]
        walls = interleaved(PAIRS[quick], *(side.run for side in sides))
    for number, kind in enumerate(("http", "zmq", "push")):
        ours, plain = walls[2 * number], walls[2 * number + 1]
        cpu, plain_cpu = (side.cpu[-PAIRS[quick] :] for side in sides[2 * number : 2 * number + 2])
        fields[f"{kind}_over_plain"] = ratio(plain, ours)
        fields[f"{kind}_spread"] = spread(plain, ours)
        fields[f"{kind}_cpu_over_plain"] = ratio(cpu, plain_cpu)
        if kind != "push":
            for label, wall in (("", ours), ("_plain", plain)):
                fields[f"{kind}{label}_mb_s"] = data.nbytes / 1e6 / statistics.median(wall)
    return fields | through_a_link(PAIRS[quick])


def through_a_link(pairs: int) -> dict[str, float]:
    """Versions from one end of a link to the other, with TLS and without in turn."""
    if not possible():
        return {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        link = stack.enter_context(started("bench.support.slow_link", *map(str, LINK)))
        tls = write_tls(folder / "tls", hosts=ADDRESSES, client_certificates=True)
        sides = [
            stack.enter_context(closing(Ends(folder / label, link.url.split(), given)))
            for label, given in (("tls", tls), ("plain", None))
        ]
        ours, plain = interleaved(pairs, *(side.run for side in sides))
    return {
        "link_over_plain": ratio(plain, ours),
        "link_spread": spread(plain, ours),
        "link_mb_s": LINK_MEGABYTES / statistics.median(ours),
        "link_plain_mb_s": LINK_MEGABYTES / statistics.median(plain),
    }


@contextmanager
def process_with(tls: RunTls | None) -> Iterator[None]:
    """Services made meanwhile, and processes started, have ``tls``."""
    before = dict(os.environ)
    give_process(tls)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def without_curve(plain: bool) -> Iterator[None]:
    """Sockets of the transport zmq made meanwhile talk in clear text, if ``plain``."""
    with ExitStack() as stack:
        for name in _CURVE if plain else ():
            stack.enter_context(patch(name, lambda *_, **__: None))
        yield


class PlainMapper(Mapper):
    """The receiver's half, which encrypts nothing."""

    def __init__(self, folder: Path, table: dict[str, Any]) -> None:
        order = json.dumps({"folder": str(folder), "table": table})
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "bench.tls", order]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


class Versions:
    """A publisher here and a receiver in another process. ``cpu`` seconds are those of both while a version is fetched."""

    def __init__(
        self, stack: ExitStack, name: str, folder: Path, data: Any, tls: RunTls | None
    ) -> None:
        table, kind = {"use": name}, PlainMapper if tls is None else Mapper
        with process_with(tls), without_curve(tls is None):
            self._publisher = stack.enter_context(closing(transport(folder, table).publisher()))
            place = folder / f"{name}-{'plain' if tls is None else 'tls'}"
            self._receiver = stack.enter_context(kind(place, table))
        flat = memoryview(data).cast("B")
        self._tensor = ExportedTensor("weight", "BF16", (len(flat) // 2,), flat)
        self._name, self._version = name, 0
        self.cpu: list[float] = []
        for _ in range(2):
            self.run()

    def run(self) -> float:
        """Publish, and the wall seconds of the fetch."""
        self._version += 1
        manifest = self._publisher.publish(self._version, [self._tensor])
        self._publisher.retain(frozenset())
        endpoints, pid = self._publisher.endpoints, self._receiver.process.pid
        told = Announcement(
            POLICY, self._version, self._name, endpoints, manifest.digest, manifest.size
        )
        cpu, began = time.process_time() + cpu_of(pid), time.perf_counter()
        self._receiver.map(told)
        wall = time.perf_counter() - began
        self.cpu.append(time.process_time() + cpu_of(pid) - cpu)
        return wall


class Ends:
    """Publisher and receiver in processes at the two ends of a link."""

    def __init__(self, folder: Path, namespaces: list[str], tls: RunTls | None) -> None:
        here, there = namespaces
        table = {"use": "http", "host": ADDRESSES[0]}
        self._stack, self._version = ExitStack(), 0
        ends: list[dict[str, Any]] = [
            {"half": "publisher", "megabytes": LINK_MEGABYTES, "density": 0.01, "namespace": here},
            {"half": "receiver", "namespace": there},
        ]
        with process_with(tls):
            self._publisher, self._receiver = (
                self._stack.enter_context(
                    closing(Peer(table=table, directory=str(folder / end["half"]), **end))
                )
                for end in ends
            )

    def run(self) -> float:
        """Publish, and the wall seconds of the fetch."""
        self._version += 1
        told = self._publisher.ask(publish=self._version)["announcement"]
        fetched: float = self._receiver.ask(fetch=told)["seconds"]
        return fetched

    def close(self) -> None:
        """End both."""
        self._stack.close()


class Pushes:
    """``count`` groups, one after another, from a client to a server of one event loop."""

    def __init__(self, count: int, tls: RunTls | None) -> None:
        self.cpu: list[float] = []
        self._count, self._loop = count, asyncio.new_event_loop()
        sampling = SamplingMessage(max_tokens=1024)
        task = Task("task-0", "prompt", {}, 8, sampling, lease_s=60.0, deadline_s=60.0)
        self._body = Groups(8, 1024).body(task, "raas-0")
        app = create_app("push", TOKEN, 1 << 24)

        @app.post("/v1/push")
        async def push(request: Request) -> Response:
            check_columns(ReceivedGroup(await request.body()))
            return reply(Done())

        with process_with(tls):
            self._server = Server(app, "127.0.0.1", 0)
            self._client = AsyncClient(self._server.url, TOKEN)
        self._loop.run_until_complete(self._server.start())

    def run(self) -> float:
        """Wall seconds of a round."""
        cpu, began = time.process_time(), time.perf_counter()
        self._loop.run_until_complete(self._all())
        wall = time.perf_counter() - began
        self.cpu.append(time.process_time() - cpu)
        return wall

    async def _all(self) -> None:
        for _ in range(self._count):
            await self._client.post_bytes("/v1/push", self._body, Done, deadline_s=60.0)

    def close(self) -> None:
        """End both."""
        self._loop.run_until_complete(self._client.aclose())
        self._loop.run_until_complete(self._server.stop())
        self._loop.close()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    with without_curve(True):
        map_versions(Path(given["folder"]), given["table"])
