from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow_testing.runs import User

sys.path.insert(0, str(Path(__file__).parent))

from odd_run import ODD_RUN


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """A user in an empty folder who has the parts and ``odd.toml``."""
    someone = User(tmp_path)
    someone.write("odd_parts.py", Path(__file__).with_name("odd_parts.py").read_text())
    someone.write("odd.toml", ODD_RUN)
    yield someone
    someone.close()
