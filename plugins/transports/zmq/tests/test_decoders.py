"""What a publisher's endpoint or answer may be, and what comes of it."""

from __future__ import annotations

import pytest

from astraflow_core.types import Announcement
from astraflow_plugin_zmq.messages import number
from astraflow_plugin_zmq.source import ZmqSource
from astraflow_testing.damage import assert_refused_or_read, damaged
from astraflow_weights.failures import PublisherFailed


@pytest.mark.parametrize(
    "endpoint",
    [
        "", "tcp://", "tcp://h", "http://h:5", "ipc:///tmp/x", "tcp://h:0", "tcp://h:99999", "tcp://h:x",
        "tcp://[::1", "tcp://[zz]:5", "tcp://a..b:5", "tcp://h\0:5", "tcp://\ud800:5", "tcp://h é:5",
        f"tcp://{'a' * 70}:5", "tcp://h:5\n",
    ],
)  # fmt: skip
def test_endpoints_that_cannot_be_connected_to_are_refused(endpoint: str) -> None:
    told = Announcement("solver", 1, "zmq", (endpoint,), "", 1)
    with pytest.raises(PublisherFailed, match="expected an address such as tcp://host:port"):
        ZmqSource(told, endpoint, "token", 4, 2)


def test_damaged_numbers_are_refused_or_read() -> None:
    assert number(b"123456789") == 123456789
    assert_refused_or_read(number, damaged([b"0", b"123456789"], "bytes"), ValueError)
