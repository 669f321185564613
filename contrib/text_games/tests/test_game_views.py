"""What the pages show of an episode of key_door."""

from __future__ import annotations

from astraflow_contrib_text_games.views import views


def test_the_corridor_after_each_move() -> None:
    turns = [
        {"role": "prompt", "text": "You are in a corridor of 5 squares: k@..d . @ is you, k a key ..."},
        {"role": "assistant", "text": "I go left"},
        {"role": "environment", "text": "K...d . Turns left: 4."},
        {"role": "assistant", "text": "take"},
        {"role": "environment", "text": "You have the key. @...d . Turns left: 3."},
    ]  # fmt: skip
    workflow = {"use": "environment", "environment": {"use": "key_door"}}
    (grid,) = views({"turns": turns, "workflow": workflow})
    assert ["".join(row) for row in grid["rows"]] == ["k@..d", "K...d", "@...d"]
    assert grid["labels"] == ["begin", "I go left", "take"]
    assert views({"turns": turns, "workflow": {"use": "single_turn"}}) == []
