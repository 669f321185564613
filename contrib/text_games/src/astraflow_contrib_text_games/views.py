"""What an episode of ``key_door`` looks like on the page Trajectories: the corridor after each move."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_CORRIDOR = re.compile(r"(?<![\w.@])[.@kKdD]{3,}(?![\w@])")
_COLOURS = {"@": 0, "k": 4, "K": 4, "d": 3, "D": 2}
_MOST_MOVE = 40


def views(trajectory: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A grid with a row for each state that the policy has seen; nothing for other environments."""
    environment = trajectory["workflow"].get("environment") or {}
    if str(environment.get("use", "")).rpartition(":")[2].rpartition("/")[2] != "key_door":
        return []
    steps = list(_steps(trajectory["turns"]))
    return [
        {
            "kind": "grid",
            "title": "Corridor",
            "rows": [list(line) for _, line in steps],
            "labels": [label for label, _ in steps],
            "colours": _COLOURS,
        }
    ]


def _steps(turns: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The move before each state, and the state."""
    move = "begin"
    for turn in turns:
        if turn["role"] == "assistant":
            words = " ".join(turn["text"].split())
            move = words[-_MOST_MOVE:]
        elif found := [line for line in _CORRIDOR.findall(turn["text"]) if set(line) & set("@KD")]:
            yield move, found[-1]
