"""Limits the connections of a listener, and decides which one is closed when there are too many. A
connection is unauthenticated until it has sent a request with the run's token. Such connections are
limited in number and time and are closed first, so neither silent nor slow clients lock others out.
"""

from __future__ import annotations

import errno
import logging
import resource
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from astraflow_wire.host.active_clock import active_time

C = TypeVar("C")

MAX_HEAD = 64 << 10
"""Bytes of a request's head."""
MAX_HEADERS = 100
HEAD_S = 10.0
"""Seconds from the first byte of a request to the end of its head, and from a connection to its first request with
the token."""
RESERVED_DESCRIPTORS = 64
"""Descriptors reserved for files: a connection that would use one of them is rejected."""
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of ``accept`` after which it is retried only after :data:`ACCEPT_AGAIN_S`."""
ACCEPT_AGAIN_S = 0.5
_MOST_DESCRIPTORS = 1 << 16
_WARN_EVERY_S = 60.0
_log = logging.getLogger("astraflow.connections")


def raise_descriptor_limit() -> int:
    """Raise the limit of open files of this process as far as allowed (65,536 at most); returns the
    new limit. Called when a service starts; its child processes inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return descriptor_limit()


def descriptor_limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum number of connections at a time: in all, from one address (which may be that of a whole
    cluster), and unauthenticated.
    """

    total: int
    per_address: int
    unauthenticated: int

    @classmethod
    def of_process(cls, most: int = 4096) -> Self:
        """The limits of a process: at most ``most`` connections, and half of the limit of open files."""
        total = max(32, min(most, descriptor_limit() // 2))
        return cls(total, 3 * total // 4, max(16, min(512, total // 4)))

    @classmethod
    def of_threads(cls) -> Self:
        """The limits of a server with a thread per connection."""
        return cls.of_process(1024)


class Occasional:
    """Logs a warning at most once a minute, with how often it was called for meanwhile."""

    def __init__(self, now: Callable[[], float] = active_time) -> None:
        self._now = now
        self._last: dict[str, float] = {}
        self._passed_over: Counter[str] = Counter()

    def __call__(self, format: str, *args: object) -> None:
        """Log it, or count it."""
        now = self._now()
        if now - self._last.get(format, -_WARN_EVERY_S) < _WARN_EVERY_S:
            self._passed_over[format] += 1
            return
        self._last[format] = now
        more = self._passed_over.pop(format, 0)
        _log.warning(
            format + (f" (and {more} more times since the last message)" if more else ""), *args
        )


class ConnectionLimits(Generic[C]):
    """The open connections of one listener. Any thread may call it; ``name`` is for the log."""

    def __init__(self, limits: Limits, name: str, now: Callable[[], float] = active_time) -> None:
        self.limits, self.warn = limits, Occasional(now)
        self._name, self._now = name, now
        self._lock = threading.Lock()
        self._addresses: dict[C, str] = {}
        self._counts: Counter[str] = Counter()
        self._unauthenticated: dict[C, float] = {}

    def __len__(self) -> int:
        """How many are open."""
        return len(self._addresses)

    def admit(self, connection: C, address: str, descriptor: int) -> C | None:
        """Admit a new connection with file ``descriptor``. Returns the connection that the caller
        must close instead, if any: the oldest unauthenticated one, of the same address if that has
        too many; it may be ``connection`` itself.
        """
        with self._lock:
            self._addresses[connection] = address
            self._counts[address] += 1
            self._unauthenticated[connection] = self._now()
            reason, candidates = self._excess(address, descriptor)
            if not reason:
                return None
            closing = next(
                c
                for c in self._unauthenticated
                if not candidates or self._addresses[c] == candidates
            )
            self._forget(closing)
        self.warn(
            "%s closes unauthenticated connections or refuses new ones, most recently from %s: %s",
            self._name,
            address,
            reason,
        )
        return closing

    def authenticated(self, connection: C) -> None:
        """The connection has sent a request with the token: it stays."""
        with self._lock:
            self._unauthenticated.pop(connection, None)

    def leave(self, connection: C) -> None:
        """The connection is closed; may be called again."""
        with self._lock:
            self._forget(connection)

    def overdue(self) -> list[C]:
        """The connections that have been unauthenticated for too long; the caller must close them."""
        with self._lock:
            until = self._now() - HEAD_S
            late = []
            for connection, since in self._unauthenticated.items():
                if since > until:
                    break  # oldest first
                late.append(connection)
            for connection in late:
                self._forget(connection)
        return late

    def connections(self) -> list[C]:
        """The open connections."""
        with self._lock:
            return list(self._addresses)

    def _excess(self, address: str, descriptor: int) -> tuple[str, str]:
        """Why there is one too many, if so, and the address of which one has to be closed, if it
        matters.
        """
        limits = self.limits
        if self._counts[address] > limits.per_address:
            return f"over {limits.per_address} from one address", address
        if len(self._addresses) > limits.total:
            return f"over {limits.total} in all", ""
        if len(self._unauthenticated) > limits.unauthenticated:
            return f"over {limits.unauthenticated} without the token", ""
        if descriptor >= descriptor_limit() - RESERVED_DESCRIPTORS:
            return f"the last {RESERVED_DESCRIPTORS} file descriptors are kept for files", ""
        return "", ""

    def _forget(self, connection: C) -> None:
        address = self._addresses.pop(connection, None)
        self._unauthenticated.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]
