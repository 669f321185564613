from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STAND_IN = Path(__file__).with_name("stand_in_server.py")


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The URL of a server with OpenEnv's protocol, in a separate process."""
    command = [sys.executable, str(STAND_IN), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.kill()
