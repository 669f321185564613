"""What a run of this workflow cannot have."""

from __future__ import annotations

from pathlib import Path

import pytest
from workspace import ROOT

from astraflow_core.errors import PreflightError
from astraflow_runtime.launch.planning.prepare import prepare


def test_a_run_that_waits_for_traffic_has_no_evaluation_sets(tmp_path: Path) -> None:
    sets = (f"run.directory={tmp_path}", 'eval.sets.later={ use = "arrivals" }')
    with pytest.raises(PreflightError, match=r"'online' waits .*remove \[eval.sets\]"):
        prepare(str(ROOT / "examples" / "online.toml"), sets)
    assert list(tmp_path.iterdir()) == []
