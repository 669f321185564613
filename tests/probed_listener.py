"""A listener in a process of its own, for test_resource_probes.py: ``python probed_listener.py KIND TOKEN DESCRIPTORS``.

Prints its port, then answers each line ``N`` on stdin with how many of N further files it could open and close.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
from urllib.parse import urlsplit

from astraflow_core.types import Delivery
from astraflow_weights.direct.delivery_server import DeliveryServer, Joining
from astraflow_weights.publish.server import WeightServer
from astraflow_wire.http.server import Server, create_app


def say(value: object) -> None:
    sys.stdout.write(f"{value}\n")
    sys.stdout.flush()


def could_open(count: int) -> int:
    opened: list[int] = []
    with contextlib.suppress(OSError):
        for _ in range(count):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    for file in opened:
        os.close(file)
    return len(opened)


def answer_lines() -> None:
    for line in sys.stdin:
        say(could_open(int(line)))


async def serve(token: str) -> None:
    server = Server(create_app("probed", token, 1 << 20), "127.0.0.1", 0)
    async with server:
        say(urlsplit(server.url).port)
        await asyncio.to_thread(answer_lines)


def meet(version: int, joining: Joining) -> Delivery:
    raise AssertionError("nobody asks")


def main(kind: str, token: str, descriptors: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    if kind == "service":
        asyncio.run(serve(token))
        return
    listener = (
        WeightServer({}, token, "127.0.0.1", 0)
        if kind == "weights"
        else DeliveryServer("127.0.0.1", "solver", token, meet)
    )
    say(listener.port)
    answer_lines()
    listener.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
