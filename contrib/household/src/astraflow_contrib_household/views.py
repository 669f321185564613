"""What an episode of ``household`` looks like on the page Trajectories: the room after each command, and at its end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from astraflow_contrib_household.room import Room

_COMMAND = re.compile(r'"command"\s*:\s*"([^"]*)"|\bACTION:[ \t]*([^\n]*)', re.IGNORECASE)


def views(trajectory: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The commands, and where everything is at the end; nothing for other environments."""
    environment = trajectory["workflow"].get("environment") or {}
    if str(environment.get("use", "")).rpartition(":")[2].rpartition("/")[2] != "household":
        return []
    room = Room(dict(trajectory["prompt_data"]["level"]))
    rows: list[list[Any]] = []
    for turn in trajectory["turns"]:
        if turn["role"] == "assistant":
            command = _command(turn["text"])
            told = room.do(command)
            rows.append([len(rows) + 1, command, told, room.at, room.held])
    places = [
        [name, place or "in the hand", ", ".join(sorted(room.done[name]))]
        for name, place in room.where.items()
    ]
    return [
        {"kind": "facts", "title": "Task", "facts": {"task": room.goal, "solved": room.solved}},
        {"kind": "table", "title": "Commands", "columns": ["turn", "command", "what came of it", "at", "held"], "rows": rows},
        {"kind": "table", "title": "Room at the end", "columns": ["object", "place", "done to it"], "rows": places},
    ]  # fmt: skip


def _command(text: str) -> str:
    """As the environment reads a reply, or a call of its tool."""
    if found := _COMMAND.findall(text):
        return str(found[-1][0] or found[-1][1])
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
