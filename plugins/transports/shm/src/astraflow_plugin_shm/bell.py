"""Receives the notifications of publishers, in a separate thread."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable

import zmq

from astraflow_core.errors import WireError
from astraflow_plugin_shm.places import BELL, Ring, folder_of, read_ring

_LONGEST = 4096
_log = logging.getLogger(__name__)


class Bell:
    """Calls ``on_ring(endpoint, ring)`` for the newest ring of a publisher that it listens to."""

    def __init__(self, on_ring: Callable[[str, Ring], None]) -> None:
        self._on_ring = on_ring
        self._wake, self._waken = os.pipe()
        self._lock = threading.Lock()
        self._wanted: str | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="shm-bell", daemon=True)
        self._thread.start()

    def listen_to(self, endpoint: str) -> None:
        """Listen to this publisher, and no longer to another."""
        with self._lock:
            if endpoint == self._wanted or self._closed:
                return
            self._wanted = endpoint
            os.write(self._waken, b"x")

    def close(self) -> None:
        """End the thread; closing twice is allowed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.write(self._waken, b"x")
        self._thread.join()
        os.close(self._wake)
        os.close(self._waken)

    def _listen(self) -> None:
        with zmq.Context() as context:
            endpoint, ears = "", None
            while not self._closed:
                with self._lock:
                    changed, endpoint = self._wanted != endpoint, self._wanted or ""
                if changed and endpoint:
                    if ears is not None:
                        ears.close(linger=0)
                    ears = _subscribed(context, endpoint)
                poller = zmq.Poller()
                poller.register(self._wake, zmq.POLLIN)
                if ears is not None:
                    poller.register(ears, zmq.POLLIN)
                ready = dict(poller.poll())
                if self._wake in ready:
                    os.read(self._wake, 64)
                elif ears is not None:
                    self._receive(endpoint, ears)
            if ears is not None:
                ears.close(linger=0)

    def _receive(self, endpoint: str, ears: zmq.Socket[bytes]) -> None:
        newest = b""
        with contextlib.suppress(zmq.Again):
            while True:
                newest = ears.recv(zmq.NOBLOCK)
        try:
            ring = read_ring(newest)
        except WireError as error:
            _log.warning("%s rang: %s", endpoint, error)
        else:
            self._on_ring(endpoint, ring)


def _subscribed(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    ears = context.socket(zmq.SUB)
    ears.setsockopt(zmq.MAXMSGSIZE, _LONGEST)
    ears.rcvhwm = 64
    ears.subscribe(b"")
    ears.connect(f"ipc://{folder_of(endpoint)[1] / BELL}")
    return ears
