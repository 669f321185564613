"""``python -m astraflow_contrib_pages.views.host``: calls plugins for their views, so that the server need not wait for them.

It reads frames from standard input and answers each on what was its standard output. A frame is four bytes with a length,
big-endian, and MessagePack: ``[plugins, plugin, trajectory, seconds]``, the plugins of the run and the one that is called, is answered
by ``{"views": […]}`` or ``{"error": "…"}``. It ends with its input, or after ten minutes without a request. A call that takes
longer than ``seconds`` ends it by a signal of the kernel, which needs neither its interpreter nor its server.
"""

from __future__ import annotations

import os
import select
import signal
from typing import IO, Any

import msgspec

from astraflow_core.catalog import Catalog
from astraflow_runtime.hooks import Hooks

HEAD = 4
IDLE_S = 600.0


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a plugin prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends this process
    requests: Any = os.fdopen(os.dup(0), "rb", buffering=0)  # select sees no buffer
    while select.select([requests], [], [], IDLE_S)[0] and (content := read_frame(requests)):
        plugins, name, trajectory, seconds = msgspec.msgpack.decode(content)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        answer = _answer(plugins, name, trajectory)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(len(answer).to_bytes(HEAD, "big") + answer)
        answers.flush()


def read_frame(stream: IO[bytes], most: int = 1 << 32) -> bytes:
    """The content of the next frame; empty at the end of the stream. ``ValueError`` if it has more than ``most`` bytes."""
    head = _read(stream, HEAD)
    size = int.from_bytes(head, "big")
    if size > most:
        raise ValueError(f"{size} bytes; at most {most} are read")
    return _read(stream, size)


def _read(stream: IO[bytes], size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = stream.read(size - len(parts))
        if not part:
            return b""
        parts += part
    return bytes(parts)


def _answer(plugins: list[str], name: str, trajectory: dict[str, Any]) -> bytes:
    try:
        plugin = Catalog.discover(only=plugins).plugin(name)
        return msgspec.msgpack.encode({"views": Hooks([plugin]).views(trajectory)})
    except Exception as error:  # noqa: BLE001 - code of plugins: its error is shown on the page
        return msgspec.msgpack.encode({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
