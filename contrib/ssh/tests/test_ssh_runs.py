"""Whole runs over ssh."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_sshd import LocalSshd

from astraflow_testing import cluster_runs
from astraflow_testing.runs import User

pytestmark = pytest.mark.backend


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    somebody = User(tmp_path)
    yield somebody
    somebody.close()


def test_two_hosts_two_policies_three_raas_and_a_killed_worker(user: User, sshd: LocalSshd) -> None:
    launcher = f"""
use = "ssh"
hosts = ["one", "two"]
command = {list(sshd.command)}
agent_python = "{sys.executable}"
silence_s = 5
"""
    cluster_runs.check(user, launcher, lambda u, d: cluster_runs.kill_process(u, "raas-1"), hosts=2)
