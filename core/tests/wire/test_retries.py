"""How long a client sleeps between its tries of a service that is away."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from astraflow_core.wire import client
from astraflow_core.wire.client import SyncClient

TRIES = 12


class EnoughSeen(Exception):
    """Ends a call that would go on."""


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
