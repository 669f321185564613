"""A publisher with the right token whose deltas are wrong, and whose blocks are damaged: the receiver's process reports
the block that failed, its memory stays bounded, and the versions that it had stay intact."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from astraflow_core.types import Announcement
from astraflow_testing.weight_peers import Liar, WeightPeer, expected

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEADLINE_S = 60.0
ROOM = 48 << 20
"""More memory that a lie may cost; a version has 8 MB, and a link no more than that."""
LIES = [
    "gaps without end", "magnitudes without end", "four gigabytes of gaps", "a million frames",
    "a million blocks", "frames of four gigabytes", "a link of petabytes", "a list without end",
    "a list of four billion", "a list of noise", "steps of another base",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("raas")


@pytest.fixture(scope="module")
def liar(folder: Path) -> Iterator[Liar]:
    program = Path(__file__).with_name("hostile_peer.py")
    with closing(Liar(program, str(folder / "first"))) as made:
        yield made


@pytest.fixture(scope="module")
def first(folder: Path, liar: Liar) -> Announcement:
    told = json.loads((folder / "first").read_text())
    return Announcement(**(told | {"endpoints": tuple(told["endpoints"])}))


@pytest.fixture(scope="module")
def receiver(folder: Path, liar: Liar, first: Announcement) -> Iterator[WeightPeer]:
    with closing(WeightPeer("receiver", {"use": "delta", "kernel": "numpy"}, folder)) as made:
        assert "got" in made.fetch(first, DEADLINE_S)
        # By a correct delta alone: the complete blocks of version 2 are damaged.
        came = made.fetch(liar.lie("honest deltas"), DEADLINE_S, keep=True)
        assert came["got"][0]["fingerprint"] == expected(2)
        yield made


@pytest.mark.parametrize("lie", LIES)
def test_the_cost_of_a_wrong_delta_is_bounded(
    liar: Liar, receiver: WeightPeer, first: Announcement, lie: str
) -> None:
    who = [lie.replace(" ", "-")]
    assert "got" in receiver.fetch(first, DEADLINE_S, who=who)
    before = receiver.ask("peak")["peak"]
    answer = receiver.fetch(liar.lie(lie), DEADLINE_S, who=who, keep=True)
    said = answer.get("error", "no error")
    assert re.search(r"version 2 of policy 'solver'.*block \d arrived corrupted 4 times", said), (
        said
    )
    assert receiver.ask("peak")["peak"] - before < ROOM
    assert receiver.ask("look") == {"held": [expected(1)]}
