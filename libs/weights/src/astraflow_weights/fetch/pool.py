"""Connections that outlive a version, so that the next one need not shake hands again."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from urllib.parse import SplitResult

from astraflow_weights.connection import Connection

IDLE_S = 45.0
"""Kept so long; publishers close an idle connection after 60 seconds."""


class ConnectionPool:
    """At most ``limit`` idle connections per address. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: dict[tuple[str, str], list[tuple[Connection, float]]] = defaultdict(list)
        self._lock = threading.Lock()
        self._closed = False

    def take(self, address: SplitResult) -> Connection | None:
        """The connection to ``address`` that was used last, or None."""
        now = time.monotonic()
        with self._lock:
            idle = self._idle[address.scheme, address.netloc]
            while idle:
                connection, since = idle.pop()
                if now - since < IDLE_S:
                    return connection
                connection.close()
        return None

    def give(self, address: SplitResult, connection: Connection) -> None:
        """Leave a connection on which no answer is outstanding."""
        with self._lock:
            idle = self._idle[address.scheme, address.netloc]
            if len(idle) < self._limit and not self._closed:
                idle.append((connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        """Close them all, and those that are given back later."""
        with self._lock:
            self._closed = True
            for idle in self._idle.values():
                for connection, _ in idle:
                    connection.close()
            self._idle.clear()
