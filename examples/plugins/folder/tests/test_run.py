"""A whole run over ``folder``: real processes, and a table in the place of a model."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from astraflow_testing.runs import User


@pytest.mark.timeout(120)
def test_a_run_serves_every_version_and_leaves_nothing(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    with closing(User(tmp_path)) as user:
        ended = user.run_table(
            "run.steps=4",
            'policies.solver.transport.use="folder"',
            f'policies.solver.transport.path="{weights}"',
        )
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == ended.summary["versions"] == 4
    assert not [file for file in weights.rglob("*") if file.is_file()]
