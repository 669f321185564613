"""The limit of a transfer of weights: threads that send the same bytes over several connected sockets, and
threads that receive them into a warm buffer and hash each block, nothing else.

``python -m bench.baselines.raw_streams FILE STREAMS``; the client's first connection says how many bytes.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from bench.support.processes import Service, announce

BLOCK = 2 << 20
SIZE = struct.Struct("<Q")


class RawStreams:
    """The receiving side."""

    def __init__(self, service: Service, size: int, streams: int) -> None:
        self._sockets = [
            socket.create_connection(service.address, timeout=60) for _ in range(streams)
        ]
        for each in self._sockets:
            each.sendall(SIZE.pack(-(-size // streams)))
        self._size = -(-size // streams)
        self._buffers = [memoryview(bytearray(BLOCK)) for _ in range(streams)]
        self._pool = ThreadPoolExecutor(streams)

    def receive(self) -> None:
        """Ask for the bytes, take and hash them."""
        list(self._pool.map(self._stream, self._sockets, self._buffers))

    def _stream(self, connected: socket.socket, buffer: memoryview) -> None:
        connected.sendall(b"?")
        left = self._size
        while left:
            block = buffer[: min(BLOCK, left)]
            position = 0
            while position < len(block):
                position += connected.recv_into(block[position:])
            xxhash.xxh3_128_digest(block)
            left -= len(block)

    def close(self) -> None:
        """Close the connections."""
        for each in self._sockets:
            each.close()
        self._pool.shutdown()


def send(client: socket.socket) -> None:
    """Serve one connection."""
    with client:
        (size,) = SIZE.unpack(client.recv(SIZE.size, socket.MSG_WAITALL))
        body = memoryview(bytearray(b"\1" * size))
        while client.recv(1):
            for position in range(0, size, 1 << 20):
                client.sendall(body[position : position + (1 << 20)])


def serve(file: Path) -> None:
    """Listen, say where, serve every client in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    announce(file, f"127.0.0.1:{listener.getsockname()[1]}")
    while True:
        client, _ = listener.accept()
        threading.Thread(target=send, args=(client,), daemon=True).start()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
