from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow_testing.runs import TABLE_RUN, User

sys.path.insert(0, str(Path(__file__).parent))

MODEL = "tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1"
ODD_RUN = (
    TABLE_RUN.replace('use = "single_turn"', 'use = "odd_parts:Odd"')
    .replace('name = "table"', 'name = "odd"\nmax_consecutive_failures = 100')
    .replace("episode_deadline_s = 10", "episode_deadline_s = 600")
    + """
[eval]
samples = 4
sets.numbers = { use = "odd_parts:Numbers" }
sets.others = { use = "odd_parts:Numbers" }
"""
)
"""Played by a workflow whose outcomes are known."""


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """A user in an empty folder who has the parts and ``odd.toml``."""
    someone = User(tmp_path)
    someone.write("odd_parts.py", Path(__file__).with_name("odd_parts.py").read_text())
    someone.write("odd.toml", ODD_RUN)
    yield someone
    someone.close()
