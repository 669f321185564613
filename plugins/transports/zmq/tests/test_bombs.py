"""A publisher with the right keys that announces wrong sizes: the receiver's process reports the block that failed, and
its memory stays bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from astraflow_testing.weight_peers import Liar, WeightPeer, expected

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEADLINE_S = 60.0
ROOM = 96 << 20
"""More memory that a lie may cost: libzmq takes a message whole, here one of 30 MiB."""
CORRUPTED = r"block \d arrived corrupted 4 times; blocks missing: 4, the first is block 0"
LIES = {
    "zeros": CORRUPTED,
    "a frame of more": r"connections failed in a row, the last: .*; blocks missing: 4, the first is block 0",
    "thirty frames of a megabyte": CORRUPTED,
    "ten thousand frames": CORRUPTED,
    "half": CORRUPTED,
    "a byte more": CORRUPTED,
    "manifest of zeros": "malformed manifest",
    "manifest of four billion blocks": "malformed manifest",
}


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    with closing(Liar(Path(__file__).with_name("hostile_peer.py"))) as made:
        yield made


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory, liar: Liar) -> Iterator[WeightPeer]:
    folder = tmp_path_factory.mktemp("raas")
    with closing(WeightPeer("receiver", {"use": "zmq", "credit": 1}, folder)) as made:
        came = made.fetch(liar.lie("none"), DEADLINE_S)
        assert came["got"][0]["fingerprint"] == expected(1)
        yield made


@pytest.mark.parametrize("lie", LIES)
def test_the_cost_of_a_wrong_size_is_bounded(liar: Liar, receiver: WeightPeer, lie: str) -> None:
    before = receiver.ask("peak")["peak"]
    said = receiver.fetch(liar.lie(lie), DEADLINE_S, keep=True).get("error", "no error")
    assert "version 1 of policy 'solver' could not be fetched: tcp://127.0.0.1:" in said
    assert re.search(LIES[lie], said), said
    assert receiver.ask("peak")["peak"] - before < ROOM
    assert receiver.ask("look") == {"held": [expected(1)]}
