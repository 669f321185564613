"""One encrypted connection to a publisher, and what its monitor says of it."""

from __future__ import annotations

import zmq
from zmq.utils.monitor import recv_monitor_message

from astraflow_plugin_zmq.keys import secure
from astraflow_weights.announced import MAX_MANIFEST
from astraflow_weights.failures import PublisherFailed

_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
)


class Lost(Exception):
    """The connection failed in a way that may pass."""


class HandshakeRefused(Lost):
    """The connection ended before any was agreed on: keys that differ, or no publisher."""


class Line:
    """Connects from construction on. ``agreed``: both sides have the keys. ``asked``: blocks whose answers are
    under way on it."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, token: str, credit: int
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.rcvhwm = self.socket.sndhwm = 2 * credit + 2
        self.socket.ipv6 = "[" in endpoint
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MANIFEST)
        secure(self.socket, token, server=False)
        self.monitor = self.socket.get_monitor_socket(_EVENTS)
        self.agreed = False
        self.asked: set[int] = set()
        try:
            self.socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close(linger=0)
            raise PublisherFailed(f"cannot connect: {error.strerror}") from error

    def send(self, *frames: bytes) -> None:
        """Queue a request; raises :class:`Lost` if the connection takes none."""
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again as error:
            raise Lost("it accepts no requests") from error

    def watch(self) -> None:
        """Take an event from the monitor; raises :class:`Lost` if the connection ended."""
        event = recv_monitor_message(self.monitor)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.agreed = True
        elif event == zmq.EVENT_CLOSED:
            raise Lost("nothing listens there")
        elif self.agreed and event == zmq.EVENT_DISCONNECTED:
            raise Lost("the connection ended")
        elif event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            raise HandshakeRefused("the handshake failed")

    def close(self, linger: int) -> None:
        """End the connection; requests that are queued have ``linger`` milliseconds to leave."""
        self.socket.disable_monitor()
        self.socket.close(linger=linger)
