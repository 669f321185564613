"""What the pages show of an episode in a room."""

from __future__ import annotations

from typing import Any

from astraflow_contrib_household.levels import OBJECTS, PLACES
from astraflow_contrib_household.views import views


def test_commands_and_the_room_at_the_end() -> None:
    assert "shelf" in PLACES and "mug" in OBJECTS
    level = {"kind": "put", "object": "mug", "target": "countertop", "places": ["shelf 1", "countertop 1"],
             "objects": {"mug 1": "shelf 1"}}  # fmt: skip
    said = ["ACTION: go to shelf 1", "THOUGHT: now. ACTION: take mug 1 from shelf 1", '{"command": "go to countertop 1"}',
            "put mug 1 in/on countertop 1"]  # fmt: skip
    trajectory: dict[str, Any] = {
        "prompt_data": {"level": level},
        "turns": [{"role": "assistant", "text": text} for text in said],
        "workflow": {"environment": {"use": "household"}},
    }
    task, commands, room = views(trajectory)
    assert task["facts"]["solved"] is True
    assert [row[3:] for row in commands["rows"]] == [
        ["shelf 1", ""], ["shelf 1", "mug 1"], ["countertop 1", "mug 1"], ["countertop 1", ""],
    ]  # fmt: skip
    assert room["rows"] == [["mug 1", "countertop 1", ""]]
    assert views({**trajectory, "workflow": {}}) == []
