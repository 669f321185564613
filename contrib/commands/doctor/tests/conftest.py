"""Fixtures of fake plugins."""

from pathlib import Path
from typing import Any

import pytest

from astraflow_runtime.raas.episodes import dry_process
from astraflow_testing.fake_plugins import manifest, run_file, site
from astraflow_tiny_model.folder import write_tiny_model

__all__ = ["manifest", "run_file", "site"]


@pytest.fixture
def sound(site: Any, run_file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of a run that can start."""
    # As in the command; a worker of pytest has threads, and a dry call would take a new interpreter.
    monkeypatch.setattr(dry_process, "_may_fork", lambda: True)
    write_tiny_model(run_file.parent / "model", hidden=8, layers=1, heads=2, kv_heads=1)
    run_file.write_text(run_file.read_text().replace("nowhere:x", "model"))
    run_file.write_text(
        run_file.read_text().replace("[run]", f"[run]\ndirectory = '{run_file.parent}/runs'")
    )
    return str(run_file)
