"""``actions.jsonl`` of a run: who changed it while it ran, when, why, and what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "actions.jsonl"
MOST_SHOWN = 200


def write_action(run: Path, entry: Mapping[str, Any]) -> None:
    """Add a line about an action, with the time. One is written before the dataflow is asked, and one with the same
    ``id`` and the outcome after it."""
    line = json.dumps({"time": time.time(), **entry}) + "\n"
    with (run / FILE).open("a", encoding="utf-8") as file:
        file.write(line)


def read_actions(run: Path) -> list[dict[str, Any]]:
    """The newest lines, the last one first; a line that a killed process left unfinished is passed over."""
    try:
        text = (run / FILE).read_text("utf-8")
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1].splitlines()
    return [json.loads(line) for line in whole[-MOST_SHOWN:]][::-1]
