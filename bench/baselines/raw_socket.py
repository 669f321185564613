"""The floor of a transfer: a process that sends a given number of bytes over a connected socket whenever it
receives one byte. ``python -m bench.baselines.raw_socket FILE``; the client first says how many."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path

from bench.support.processes import Service, announce

SIZE = struct.Struct("<Q")


class RawSocket:
    """The receiving side: one connection, one warm buffer of ``size`` bytes."""

    def __init__(self, service: Service, size: int) -> None:
        self._socket = socket.create_connection(service.address, timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(SIZE.pack(size))
        self._buffer = memoryview(bytearray(size))

    def receive(self) -> None:
        """Ask for the bytes and take them."""
        self._socket.sendall(b"?")
        position = 0
        while position < len(self._buffer):
            position += self._socket.recv_into(self._buffer[position:])

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def serve(file: Path) -> None:
    """Listen, say where, serve one client after the other."""
    listener = socket.create_server(("127.0.0.1", 0))
    announce(file, f"127.0.0.1:{listener.getsockname()[1]}")
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client:
            (size,) = SIZE.unpack(client.recv(SIZE.size, socket.MSG_WAITALL))
            body = bytes(size)
            while client.recv(1):
                client.sendall(body)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
