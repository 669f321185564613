from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """A folder with a config.json, without weights."""

    def made(table: dict[str, Any]) -> Path:
        found = tmp_path / str(len(list(tmp_path.iterdir())))
        found.mkdir()
        (found / "config.json").write_text(json.dumps(table))
        return found

    return made
