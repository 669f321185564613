"""The configuration with the parts of ``odd_parts``."""

from __future__ import annotations

from astraflow_testing.runs import TABLE_RUN

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
