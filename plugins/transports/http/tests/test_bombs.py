"""A publisher with the right token that announces wrong sizes: the receiver's process reports the block that failed,
and its memory stays bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from astraflow_testing.weight_peers import Liar, WeightPeer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEADLINE_S = 60.0
ROOM = 160 << 20
"""More memory that a lie may cost: twice the longest manifest that is read, and some."""
LIES = {
    "compressed": r"answered 206 with \d+ bytes to a range of \d+; blocks missing: 4, the first is block 0",
    "compressed, of the right length": r"block \d arrived corrupted 4 times; blocks missing: 4",
    "a terabyte": rf"answered 206 with {1 << 40} bytes to a range of .*the first is block 0",
    "longer than it says": r"block \d|blocks missing: 4, the first is block 0",
    "shorter than it says": r"ended early; blocks missing: 4, the first is block 0",
    "zeros": r"block \d arrived corrupted 4 times; blocks missing: 4, the first is block 0",
    "manifest of zeros": "malformed manifest",
    "manifest of four billion blocks": "malformed manifest",
    "manifest of deep lists": "malformed manifest",
    "manifest, compressed": "malformed manifest",
    "many sources": "names 500000 sources, at most",
    "many runs": "serves blocks 0 to 3, and names block 0 twice",
}


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    with closing(Liar(Path(__file__).with_name("hostile_peer.py"))) as made:
        yield made


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory, liar: Liar) -> Iterator[WeightPeer]:
    folder = tmp_path_factory.mktemp("raas")
    with closing(WeightPeer("receiver", {"use": "http"}, folder)) as made:
        assert "got" in made.fetch(liar.lie("none"), DEADLINE_S)
        made.ask("release")
        yield made


@pytest.mark.parametrize("lie", LIES)
def test_the_cost_of_a_wrong_size_is_bounded(liar: Liar, receiver: WeightPeer, lie: str) -> None:
    before = receiver.ask("peak")["peak"]
    said = receiver.fetch(liar.lie(lie), DEADLINE_S).get("error", "no error")
    assert "version 1 of policy 'solver' could not be fetched: http://127.0.0.1:" in said
    assert re.search(LIES[lie], said), said
    assert receiver.ask("peak")["peak"] - before < ROOM
    assert "got" in receiver.fetch(liar.lie("none"), DEADLINE_S)
    receiver.ask("release")
