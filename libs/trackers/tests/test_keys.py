"""The configuration as trackers show it."""

from __future__ import annotations

from astraflow_trackers.keys import dotted


def test_nested_tables_become_dotted_keys() -> None:
    table = {"run": {"seed": 0}, "data": [{"use": "a"}, {"use": "b"}], "stop": ["x", "y"]}
    assert dotted(table) == {
        "run.seed": 0,
        "data.0.use": "a",
        "data.1.use": "b",
        "stop": ["x", "y"],
    }
