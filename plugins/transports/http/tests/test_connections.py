"""The use of connections: kept from version to version, as many as the link needs, with the kernel's default
buffers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from astraflow_core.types import Announcement
from astraflow_weights.connection import Connection
from astraflow_weights.fetch import client as clients
from astraflow_weights.fetch.client import FAR_FACTOR, FAR_S, MOST_FACTOR, PER_STREAM, VersionClient
from astraflow_weights.fetch.probe import LEAST_BYTES

TOKEN = "a-token-of-the-run"
STREAMS, SECONDS = 4, 3.0
BUFFERS = (socket.SO_RCVBUF, socket.SO_SNDBUF)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Connection]]:
    """The connections that receivers have opened."""
    made: list[Connection] = []

    class Noted(Connection):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(clients, "Connection", Noted)
    yield made


def test_versions_come_over_the_connections_of_those_before(
    rig: Any, model: Any, announce: Any, opened: list[Connection]
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver(streams=1)
    for version in range(1, 13):
        manifest = publisher.publish(version, model(version, 1), None)
        receiver.release(receiver.fetch(announce(manifest, *publisher.endpoints), 20))
    # Each version takes three requests: for its manifest, its data and the end of the lease.
    assert 1 <= len(opened) <= MOST_FACTOR


def test_no_one_sets_the_size_of_a_sockets_buffers(
    rig: Any, model: Any, announce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: list[tuple[int, int]] = []
    setsockopt = socket.socket.setsockopt

    def noted(self: socket.socket, level: int, option: int, *value: Any) -> None:
        options.append((level, option))
        setsockopt(self, level, option, *value)

    monkeypatch.setattr(socket.socket, "setsockopt", noted)
    publisher = rig.publisher()
    rig.receiver().fetch(announce(publisher.publish(1, model(), None), *publisher.endpoints), 20)
    assert (socket.IPPROTO_TCP, socket.TCP_NODELAY) in options
    assert not [o for level, o in options if level == socket.SOL_SOCKET and o in BUFFERS]


def test_a_long_fetch_measures_its_link_and_a_short_one_does_not(
    rig: Any, model: Any, announce: Any
) -> None:
    publisher, receiver = rig.publisher(), rig.receiver()
    long = publisher.publish(1, model(1, LEAST_BYTES // (2 << 20)), None)
    link = receiver.fetch(announce(long, *publisher.endpoints), 20).link
    assert link.mb_s > 0 and link.round_trip_s > 0
    other = rig.publisher()
    short = other.publish(1, model(1, 1), None)
    assert receiver.fetch(announce(short, *other.endpoints), 20).link is None


@pytest.mark.parametrize(
    ("round_trip_s", "received", "expected"),
    [
        (float("inf"), 0, STREAMS),
        (FAR_S / 2, 0, STREAMS),
        (FAR_S * 2, 0, STREAMS * FAR_FACTOR),
        (0.3, int(24.5 * PER_STREAM / 0.3 * SECONDS), 24),
        (0.3, 1 << 40, STREAMS * MOST_FACTOR),
    ],
)
def test_streams_grow_with_what_the_path_holds(
    round_trip_s: float, received: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    told = Announcement("solver", 1, "http", ("http://127.0.0.1:1",), "", 1)
    client = VersionClient(told, told.endpoints[0], TOKEN, now + 60, STREAMS)
    client._round_trip_s = round_trip_s
    client.count(received)
    now += SECONDS
    assert client.width() == expected
