"""A run whose workflow gives rewards and states of turns, trained with an algorithm that compares turns."""

from __future__ import annotations

import pytest
from bench.support.text_game.runs import Curve, played
from bench.text_game import figures, picture, record


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_turns_of_a_game_are_credited_from_episode_to_update() -> None:
    curve = played("run.steps=2", "eval.every=1", "policies.player.batch_sequences=32")
    assert list(curve.won) == [0, 1, 2]
    assert all(0 <= won <= 1 for won in curve.won.values())
    assert curve.tokens_trained == 2 * 32  # each turn is a sequence with one sampled token


def test_figures_are_the_worst_of_the_seeds() -> None:
    curves = {
        ("turns", 0): Curve({0: 0.0, 10: 0.5, 20: 1.0}, 90.0, 1, 0.5),
        ("turns", 1): Curve({0: 0.1, 10: 0.9, 20: 0.95}, 95.04, 1, 0.75),
        ("episodes", 0): Curve({0: 0.2, 10: 0.2, 20: 0.5}, 80.0, 1, 0.25),
        ("episodes", 1): Curve({0: 0.0, 10: 0.0, 20: 0.0}, 70.0, 1, 0.0),
    }
    runs = [record(name, seed, curve) for (name, seed), curve in curves.items()]
    assert figures(runs) == {
        "turns_first_most": 0.1, "turns_last_least": 0.95, "turns_mean": 0.575,
        "turns_mean_0": 0.5, "turns_reward_0": 0.5, "turns_updates_to_090_0": 20,
        "turns_mean_1": 0.65, "turns_reward_1": 0.75, "turns_updates_to_090_1": 10, "turns_cpu_s_most": 95.0,
        "episodes_first_most": 0.2, "episodes_last_least": 0.0, "episodes_mean": 0.15,
        "episodes_mean_0": 0.3, "episodes_reward_0": 0.25,
        "episodes_mean_1": 0.0, "episodes_reward_1": 0.0, "episodes_cpu_s_most": 80.0,
    }  # fmt: skip
    assert "episodes (grpo)" in picture(runs)
