"""How long a client sleeps between its tries of a service that is away."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from astraflow_core.errors import DeadlineExceeded
from astraflow_wire.http import client
from astraflow_wire.http.client import SyncClient

TRIES = 12


class EnoughSeen(Exception):
    """Ends a call that would continue."""


def test_a_service_that_comes_back_is_not_kept_waiting(monkeypatch):
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == TRIES:
            raise EnoughSeen

    monkeypatch.setattr(client, "time", SimpleNamespace(sleep=sleep))
    with socket.socket() as reserved:  # bound and not listening: every connection is refused
        reserved.bind(("127.0.0.1", 0))
        away = SyncClient(f"http://127.0.0.1:{reserved.getsockname()[1]}", "token")
        with pytest.raises(EnoughSeen):
            away.get_json("/v1/status", deadline_s=600)
    assert slept[0] < 0.1, "a moment's absence costs a moment"
    assert slept == sorted(slept), "ever longer, so that many callers do not hammer at it"
    assert max(slept) <= 0.5, "a restart takes about a second; nobody sleeps much longer"


@pytest.mark.parametrize("waits", [True, False])
def test_a_dataflow_that_waits_for_room_is_waited_for(monkeypatch, waits):
    """Its replies show that it is alive; only then the deadline is suspended, and only for callers that can wait."""
    now = [0.0]
    monkeypatch.setattr(client, "active_time", lambda: now[0])
    attempts = client._Attempts("http://dataflow", "/v1/groups", 20.0, waits)
    left = iter(attempts)
    for _ in range(1000 if waits else 1):
        assert next(left) > 0
        assert attempts.answer(client.NO_ROOM, b'{"error": "there is no room"}') is None
        now[0] += 15
    if waits:
        assert attempts.answer(200, b"done") == b"done"
        assert attempts.answer(503, b"away") is None
    now[0] += 20
    with pytest.raises(DeadlineExceeded, match="503 away" if waits else "507 there is no room"):
        next(left)
