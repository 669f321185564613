"""A run with each transport: weights reach the engine, and nothing is left when it has ended."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from astraflow_core.testing.runs import TABLE_RUN, User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CHOICES = {
    "shm": '{ use = "shm" }',
    "disk": '{ use = "disk", url = "STORE" }',
    "zmq": '{ use = "zmq", credit = 2 }',
    "auto": '{ use = "auto" }',
}
SHARED = Path("/dev/shm")


@pytest.mark.parametrize("name", CHOICES)
def test_a_run_ends_with_every_version_served(user: User, tmp_path: Path, name: str) -> None:
    store = tmp_path / "store"
    before = ours()
    table = CHOICES[name].replace("STORE", str(store))
    ended = user.run_table("run.steps=6", config=TABLE_RUN.replace('{ use = "http" }', table))
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == ended.summary["versions"] == 6
    assert ended.summary["lost"] == 0
    resolved = (ended.run_directory / "config.toml").read_text()
    if name == "auto":
        chosen = re.search(r"'auto' chose '(\w+)', because", ended.text)
        assert chosen is not None and f"# policies.solver.transport: {chosen[0]}" in resolved
        assert f'use = "{chosen[1]}"' in resolved
    assert not [path for path in store.rglob("*") if path.is_file()]
    assert ours() <= before


def ours() -> set[str]:
    """What transports of this user have in shared memory."""
    found = SHARED.glob("astraflow-*") if SHARED.is_dir() else ()
    return {path.name for path in found if path.stat().st_uid == os.getuid()}
