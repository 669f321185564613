"""How far a tracker has come: kept in the run directory, so that a resumed run continues where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from astraflow_wire.host.disk import is_full, replace_file


@dataclass
class Cursor:
    """What a tracker has confirmed. ``steps``: group → its last step; ``rollouts``: policy → the last step whose
    trajectories were sent; ``journal``: byte up to which spans of prompts were sent."""

    steps: dict[str, int] = field(default_factory=dict)
    rollouts: dict[str, int] = field(default_factory=dict)
    journal: int = 0
    rows: int = 0
    spans: int = 0


def read_cursor(file: Path) -> Cursor:
    """The one of an earlier start of the run, else a new one; also if it cannot be read, since a step that is sent twice does
    less harm than one that is missing."""
    try:
        return Cursor(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return Cursor()


def write_cursor(file: Path, cursor: Cursor) -> None:
    """Save it; on a full disk the previous one stays."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, (json.dumps(asdict(cursor)) + "\n").encode())
    except OSError as error:
        if not is_full(error, file.parent):
            raise


def counted(steps: Mapping[str, int]) -> str:
    """Where a tracker stands, for people."""
    return ", ".join(f"{group} at {step}" for group, step in steps.items()) or "nothing sent"
