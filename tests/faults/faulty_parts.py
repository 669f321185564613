"""Components of a run whose network fails, and of one whose engine refuses versions.

All that a trainer exports and all that an engine is given is noted with its digest in the run directory, so
that a test can compare the two. Copied into the folder of the test's user.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from astraflow_core.errors import WeightsError
from astraflow_core.types import ExportedTensor, WeightSource
from astraflow_plugin_http.config import HttpConfig
from astraflow_plugin_http.transport import HttpTransport
from astraflow_testing.table import TableEngine, TableEngineConfig, TableTrainer

BALLAST_BYTES = 5 << 20
"""Makes a version of three blocks; no byte of it says the same in two versions in a row."""

_CHUNK = 1 << 16
_DATA = re.compile(rb"/v1/weights/\w+/(\d+)/data")


def note(directory: Path, name: str, **entry: Any) -> None:
    """Add a line to a file of the run directory."""
    with (directory / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")


def digest_of(tensors: Mapping[str, np.ndarray]) -> str:
    """Over names, shapes and bytes; shares no code with the transport."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.shape} {tensor.dtype.itemsize}".encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()


class BallastTrainer(TableTrainer):
    """A table trainer whose versions are large enough to be torn."""

    exports = 0

    def export(self) -> Iterator[ExportedTensor]:
        yield from super().export()
        self.exports += 1
        ballast = np.arange(BALLAST_BYTES, dtype=np.uint32).astype(np.uint8) + np.uint8(
            self.exports
        )
        yield ExportedTensor("ballast", "U8", ballast.shape, ballast)


class WitnessConfig(TableEngineConfig):
    refuse_every: int = 0
    """Versions that this divides are refused when they are given for the first time; not version 0."""


class WitnessEngine(TableEngine):
    """A table engine that records the versions it gets and, after each load that succeeds or fails, which version it
    samples with."""

    Config = WitnessConfig

    def __init__(self, config: WitnessConfig, context: Any) -> None:
        super().__init__(config, context)
        self._every, self._context = config.refuse_every, context
        self._refused: set[int] = set()
        self._sampled = -1

    async def load_weights(self, source: WeightSource) -> None:
        directory = self._context.run.directory
        tensors = load_file(source.path)
        given = {"version": source.version, "digest": digest_of(tensors)}
        note(directory, "given", at=str(self._context.directory), **given)
        due = self._every and source.version % self._every == 0 < source.version
        if due and source.version not in self._refused:
            self._refused.add(source.version)
            self._sampled = -1
            note(directory, "engine", refused=source.version)
            raise WeightsError(f"version {source.version} is refused")
        self._context.directory.mkdir(parents=True, exist_ok=True)
        table = self._context.directory / f"table-{source.version}.safetensors"
        save_file({"logits": tensors["logits"]}, table)
        await super().load_weights(replace(source, path=table))
        table.unlink()
        self._sampled = -1
        note(directory, "engine", loaded=source.version)

    def _sample(self, running: Any) -> None:
        super()._sample(running)
        if (version := running.versions[-1]) != self._sampled:
            self._sampled = version
            note(self._context.run.directory, "engine", sampled=version)


class FaultyConfig(HttpConfig):
    flips: float = 0.0
    """Probability of a flipped byte in 64 KiB on their way to a receiver."""
    cuts: float = 0.0
    """Probability that the connection is cut there."""
    stall_at: int = -1
    """The first version of which one transfer stops half-way."""
    stall_publishes: int = 0
    """How many versions are published before it continues."""


class FaultyTransport(HttpTransport):
    """The transport ``http`` behind a network that fails."""

    Config = FaultyConfig
    capabilities = frozenset({"full", "cross_host"})

    def __init__(self, config: FaultyConfig, context: Any) -> None:
        super().__init__(config, context)

    def publisher(self) -> Any:
        return WitnessPublisher(super().publisher(), self._config, self._context)


class WitnessPublisher:
    """Notes what is published, and lets receivers reach it through the faulty network only."""

    def __init__(self, publisher: Any, config: FaultyConfig, context: Any) -> None:
        self._publisher, self._directory = publisher, context.run.directory
        port = int(publisher.endpoints[0].rpartition(":")[2])
        self._network = Network(port, config, context.run.directory)
        self.endpoints = (f"http://127.0.0.1:{self._network.port}",)
        self.retain, self.close = publisher.retain, publisher.close

    def publish(
        self, version: int, tensors: Iterable[ExportedTensor], derives_from: int | None = None
    ) -> Any:
        seen = {}

        def watched() -> Iterator[ExportedTensor]:
            for tensor in tensors:
                seen[tensor.name] = np.array(tensor.data)
                yield tensor

        manifest = self._publisher.publish(version, watched(), derives_from)
        note(self._directory, "exported", version=version, digest=digest_of(seen))
        self._network.newest = version
        return manifest


class Network:
    """Carries bytes between receivers and the publisher at ``port``, badly."""

    def __init__(self, port: int, config: FaultyConfig, directory: Path) -> None:
        self._target, self._config, self._directory = port, config, directory
        self._random = random.Random(7)
        self._stalled = False
        self._lock = threading.Lock()
        self.newest = -1
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            receiver, _ = self._server.accept()
            publisher = socket.create_connection(("127.0.0.1", self._target))
            asked = [-1]
            for carry in (self._up, self._down):
                arguments = (receiver, publisher, asked)
                threading.Thread(target=carry, args=arguments, daemon=True).start()

    def _up(self, receiver: socket.socket, publisher: socket.socket, asked: list[int]) -> None:
        try:
            while data := receiver.recv(_CHUNK):
                if found := _DATA.search(data):
                    asked[0] = int(found[1])
                publisher.sendall(data)
            publisher.shutdown(socket.SHUT_WR)
        except OSError:
            publisher.close()

    def _down(self, receiver: socket.socket, publisher: socket.socket, asked: list[int]) -> None:
        carried = 0
        try:
            while data := bytearray(publisher.recv(_CHUNK)):
                carried += len(data)
                if asked[0] >= 0:
                    self._hold_up(asked[0], carried)
                    self._flip(data)
                    if self._happens(self._config.cuts):
                        note(self._directory, "faults", kind="cut", version=asked[0])
                        receiver.sendall(data[: len(data) // 2])
                        break
                receiver.sendall(data)
        except OSError:
            pass
        finally:
            for connection in (receiver, publisher):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the other thread
                connection.close()

    def _happens(self, probability: float) -> bool:
        with self._lock:
            return self._random.random() < probability

    def _flip(self, data: bytearray) -> None:
        # In the data, not in the headers before it: those end a request, or hold it up for long.
        if len(data) > 4096 and self._happens(self._config.flips):
            data[len(data) // 2] ^= 0x10
            note(self._directory, "faults", kind="flip")

    def _hold_up(self, version: int, carried: int) -> None:
        with self._lock:
            if self._stalled or not 0 <= self._config.stall_at <= version or carried < 1 << 19:
                return
            self._stalled = True
        note(self._directory, "faults", kind="stall", version=version)
        end = time.monotonic() + 60
        while self.newest < version + self._config.stall_publishes and time.monotonic() < end:
            time.sleep(0.01)
        note(self._directory, "faults", kind="stall over", version=version, newest=self.newest)
