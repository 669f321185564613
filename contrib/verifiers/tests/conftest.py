from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter that implements the worker's protocol for environments without verifiers."""
    path = tmp_path / "python"
    script = HERE / "stand_in_environment.py"
    path.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} {script} "$@"\n', "utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)
