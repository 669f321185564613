from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.types import (
    Announcement,
    ComponentContext,
    ExportedTensor,
    Manifest,
    RunInfo,
)
from astraflow_plugin_http.config import HttpConfig
from astraflow_plugin_http.transport import HttpTransport
from astraflow_weights.fetch.receiver import HttpReceiver
from astraflow_weights.publish.publisher import HttpPublisher

TOKEN = "a-token-of-the-run"
BLOCK = 2 << 20


@dataclass
class Proxy:
    """A proxy between a receiver and a publisher that behaves like a bad link.

    ``corrupt``: file offset → how many times its byte arrives flipped. ``cut_after``: bytes after which
    the connection of a data request breaks, once per entry. ``delay_s``: before each piece of data.
    """

    upstream: str
    corrupt: dict[int, int] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    delay_s: float = 0.0
    ranges: list[tuple[int, int]] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def body(self, start: int, body: bytes) -> bytes:
        changed = bytearray(body)
        for offset, times in list(self.corrupt.items()):
            if times and start <= offset < start + len(body):
                changed[offset - start] ^= 1
                self.corrupt[offset] = times - 1
        return bytes(changed)


class Rig:
    """Publishers, receivers and proxies that are closed when the test ends."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack

    def transport(self, token: str = TOKEN, policy: str = "solver", **keys: Any) -> HttpTransport:
        run = RunInfo("test", 0, 1, 0, (policy,), self._folder)
        context = ComponentContext(run, "raas", policy, 0, self._folder / "state", token)
        return HttpTransport(HttpConfig(**keys), context)

    def publisher(self, **keys: Any) -> HttpPublisher:
        return self._stack.enter_context(closing(self.transport(**keys).publisher()))

    def receiver(self, **keys: Any) -> HttpReceiver:
        return self._stack.enter_context(closing(self.transport(**keys).receiver()))

    def proxy(self, publisher: HttpPublisher, **faults: Any) -> Proxy:
        proxy = Proxy(publisher.endpoints[0].removeprefix("http://"), **faults)
        proxy.gate.set()
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                upstream = http.client.HTTPConnection(proxy.upstream, timeout=10)
                upstream.request("GET", self.path, headers=dict(self.headers))
                response = upstream.getresponse()
                body = response.read()
                upstream.close()
                cut = None
                if "Range" in self.headers:
                    first, last = self.headers["Range"].removeprefix("bytes=").split("-")
                    with lock:
                        proxy.ranges.append((int(first), int(last) + 1))
                        body = proxy.body(int(first), body)
                        cut = proxy.cut_after.pop(0) if proxy.cut_after else None
                    proxy.started.set()
                    proxy.gate.wait(20)
                self.send_response(response.status)
                self.send_header("Content-Length", str(len(body)))
                if relay := response.headers.get("AstraFlow-From"):
                    self.send_header("AstraFlow-From", relay)
                self.end_headers()
                if cut is not None:
                    self.wfile.write(body[:cut])
                    self.close_connection = True
                    return
                self.wfile.write(body)

            def do_DELETE(self) -> None:
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self._stack.callback(server.server_close)
        self._stack.callback(server.shutdown)
        self._stack.callback(proxy.gate.set)
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        return proxy


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(tmp_path, stack)


@pytest.fixture
def model() -> Callable[..., list[ExportedTensor]]:
    """``model(seed, blocks)``: random bf16 tensors of a little more than ``blocks`` blocks."""

    def make(seed: int = 0, blocks: int = 3) -> list[ExportedTensor]:
        generator = np.random.default_rng(seed)
        shapes = {"b.weight": (blocks * 512, 2048), "a.weight": (3, 5), "c.bias": (7,)}
        return [
            ExportedTensor(
                name, "BF16", shape, generator.integers(0, 2**16, shape, dtype=np.uint16)
            )
            for name, shape in shapes.items()
        ]

    return make


@pytest.fixture
def announce() -> Callable[..., Announcement]:
    def make(manifest: Manifest, *endpoints: str) -> Announcement:
        return Announcement(
            manifest.policy, manifest.version, "http", endpoints, manifest.digest, manifest.size
        )

    return make


@pytest.fixture
def read() -> Callable[[Path], dict[str, bytes]]:
    """The tensors of a safetensors file, read by safetensors itself: name → bytes."""
    from safetensors import deserialize

    def load(path: Path) -> dict[str, bytes]:
        return {name: bytes(entry["data"]) for name, entry in deserialize(path.read_bytes())}

    return load


@pytest.fixture
def raw() -> Callable[[Iterable[ExportedTensor]], dict[str, bytes]]:
    return lambda tensors: {t.name: np.asarray(t.data).tobytes() for t in tensors}


@pytest.fixture
def shared_files() -> Callable[[], set[Path]]:
    """Lists shared memory, but for the files of others whose tests may run at the same time: the transport ``shm``, Python's
    ``SharedMemory``, OpenMP and torch."""
    shared, others = Path("/dev/shm"), ("astraflow-", "psm_", "__KMP_", "torch_", "sem.")
    return lambda: {file for file in shared.iterdir() if not file.name.startswith(others)}
