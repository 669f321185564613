from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import User

sys.path.insert(0, str(Path(__file__).parent))  # for foreign_raas and scripted_dataflow


@pytest.fixture
def user(tmp_path: Path, someone: Callable[[Path], Any]) -> Iterator[User]:
    """Somebody in a folder of their own; what they started is ended."""
    somebody = someone(tmp_path)
    yield somebody
    somebody.close()
