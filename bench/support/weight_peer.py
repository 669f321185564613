"""The halves of a transport, each in a separate process that runs the orders of its input, one JSON line each.

    python -m bench.support.weight_peer ORDER

``ORDER`` is JSON: ``half`` ("publisher" or "receiver"), ``table`` (of the transport), ``directory``, and for
a publisher ``megabytes`` and ``density`` (the share of the bf16 weights that changes by one ulp between two
versions). ``namespace`` is a file of a network namespace to enter first.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import numpy.typing as npt

from astraflow_core.catalog import Catalog
from astraflow_core.config.models import ComponentTable
from astraflow_core.protocols.transport import Transport
from astraflow_core.types import Announcement, ComponentContext, ExportedTensor, RunInfo
from bench.support.obedient import ANSWER_S, Obedient
from bench.support.processes import TOKEN
from bench.support.slow_link import enter

POLICY = "solver"
TENSOR = 16 << 20
"""Bytes of each tensor."""


class Peer(Obedient):
    """One half in another process; its CPU seconds come with every answer."""

    def __init__(self, **order: object) -> None:
        super().__init__("bench.support.weight_peer", **order)


class Model:
    """Random bf16 weights near those of a trained model, and updates of them."""

    def __init__(self, megabytes: float, density: float) -> None:
        generator = np.random.default_rng(0)
        size = int(megabytes * 1e6) // 2
        values = generator.standard_normal(size, dtype=np.float32) * np.float32(0.02)
        self.weights: npt.NDArray[np.uint16] = (values.view(np.uint32) >> 16).astype(np.uint16)
        self._generator, self._density = generator, density

    def step(self) -> None:
        """Change ``density`` of the weights by one unit in the last place."""
        count = round(len(self.weights) * self._density)
        where = self._generator.choice(len(self.weights), count, replace=False, shuffle=False)
        up = self._generator.integers(0, 2, count).astype(bool)
        self.weights[where] += np.where(up, 1, 0xFFFF).astype(np.uint16)

    def export(self) -> Iterator[ExportedTensor]:
        """As tensors of :data:`TENSOR` bytes."""
        for number, at in enumerate(range(0, len(self.weights), TENSOR // 2)):
            part = self.weights[at : at + TENSOR // 2]
            yield ExportedTensor(f"layers.{number:04}.weight", "BF16", part.shape, part)


def build(order: dict[str, Any]) -> Transport:
    """The transport, as a process of a run has it."""
    directory = Path(order["directory"])
    run = RunInfo("bench", 0, 10, 2, (POLICY,), directory)
    context = ComponentContext(run, order["half"], POLICY, 0, directory / "state", TOKEN)
    table = ComponentTable(**order["table"])
    transport: Transport = Catalog.discover().build("transport", table, context)
    return transport


def publish(order: dict[str, Any]) -> None:
    """Play the publisher: ``{"publish": VERSION}`` changes the model and publishes it."""
    publisher = build(order).publisher()
    model = Model(order["megabytes"], order["density"])
    for line in sys.stdin:
        wanted = json.loads(line)
        if "publish" in wanted:
            version = wanted["publish"]
            model.step()
            began, cpu = time.perf_counter(), time.process_time()
            manifest = publisher.publish(version, model.export(), version - 1 or None)
            publisher.retain(frozenset())
            told = Announcement(
                POLICY, version, order["table"]["use"], publisher.endpoints, manifest.digest, manifest.size
            )  # fmt: skip
            tell(
                announcement=asdict(told),
                began=began,
                seconds=time.perf_counter() - began,
                publish_cpu=time.process_time() - cpu,
            )
        else:
            tell()
    publisher.close()


def receive(order: dict[str, Any]) -> None:
    """Play the receiver: ``{"fetch": ANNOUNCEMENT}``, or ``{"post": URL}`` to send a POST to a proxy; after each fetch
    the previous version is released."""
    receiver = build(order).receiver()
    held = None
    for line in sys.stdin:
        given = json.loads(line)
        if "post" in given:
            urlopen(Request(given["post"], method="POST"), timeout=ANSWER_S).close()
            tell()
            continue
        wanted = given["fetch"]
        told = Announcement(**{**wanted, "endpoints": tuple(wanted["endpoints"])})
        before = time.process_time()
        source = receiver.fetch(told, ANSWER_S)
        ended = time.perf_counter()
        cpu = time.process_time() - before
        if held is not None:
            receiver.release(held)
        held = source
        tell(
            ended=ended,
            seconds=source.seconds,
            fetch_cpu=cpu,
            bytes=source.bytes_received,
            path=str(source.path),
        )
    receiver.close()


def tell(**facts: object) -> None:
    """Answer an order. ``began`` and ``ended`` are times of the monotonic clock of this host."""
    print(json.dumps({**facts, "cpu": time.process_time()}), flush=True)


def main() -> int:
    """Entry point."""
    order = json.loads(sys.argv[1])
    if "namespace" in order:
        enter(order["namespace"])
    (publish if order["half"] == "publisher" else receive)(order)
    return 0


if __name__ == "__main__":
    sys.exit(main())
