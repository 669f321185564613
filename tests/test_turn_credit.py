"""A run whose workflow gives rewards and states of turns, trained with an algorithm that compares turns."""

from __future__ import annotations

import pytest
from bench.support.text_game.runs import played


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_turns_of_a_game_are_credited_from_episode_to_update() -> None:
    keys = ("run.steps=2", "eval.every=1", "policies.player.batch_sequences=32")
    curve = played("gigpo", 0, keys)
    assert list(curve.won) == [0, 1, 2]
    assert all(0 <= won <= 1 for won in curve.won.values())
    assert curve.tokens_trained == 2 * 32  # each turn is a sequence with one sampled token
