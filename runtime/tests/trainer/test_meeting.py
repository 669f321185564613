"""Where the ranks of a trainer meet, and from where each knows which it is."""

from __future__ import annotations

import pytest

from astraflow_core.errors import UserError
from astraflow_core.types import Ranks
from astraflow_runtime.trainer.ranks.rendezvous import RankRendezvous, ranks_of


def test_where_the_ranks_are_known_from() -> None:
    said = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert ranks_of(said, 4, "trainer-p", 9.0) == Ranks(3, 4, 1, 9.0)
    assert ranks_of(said, 1, "trainer-p", 9.0) == Ranks(0, 1, 0, 9.0)
    with pytest.raises(UserError, match=r"ranks = 2, and 'RANK' is not set: start it with"):
        ranks_of({}, 2, "trainer-p", 9.0)
    with pytest.raises(UserError, match="ranks = 2, but 4 were started"):
        ranks_of(said, 2, "trainer-p", 9.0)


def test_each_start_of_a_group_has_a_place_of_its_own() -> None:
    def name(token: str = "t", **environment: str) -> str:
        return RankRendezvous.of("trainer-p", Ranks(0, 2), token, environment).name

    places = [name(), name(TORCHELASTIC_RESTART_COUNT="1"), name("u"), name(MASTER_PORT="2")]
    assert len(set(places)) == 4
    assert name(MASTER_PORT="2") == places[3]
