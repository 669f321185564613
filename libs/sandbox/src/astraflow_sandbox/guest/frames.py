"""Frames between caller and zygote, and between zygote and program: a header of JSON and a body of bytes."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

HEAD = struct.Struct("!II")


def pack(header: dict[str, Any], body: bytes = b"") -> bytes:
    """The frame as bytes."""
    text = json.dumps(header).encode()
    return HEAD.pack(len(text), len(body)) + text + body


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """The next frame; ``None`` at the end."""
    head = _exactly(connection, HEAD.size)
    if head is None:
        return None
    text_size, body_size = HEAD.unpack(head)
    text, body = _exactly(connection, text_size), _exactly(connection, body_size)
    return None if text is None or body is None else (json.loads(text), bytes(body))


def _exactly(connection: socket.socket, size: int) -> bytearray | None:
    found = bytearray(size)
    view, at = memoryview(found), 0
    while at < size:
        count = connection.recv_into(view[at:])
        if not count:
            return None
        at += count
    return found
