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


@pytest.fixture
def launcher(sshd: LocalSshd) -> str:
    return f"""
use = "ssh"
hosts = ["one", "two"]
command = {list(sshd.command)}
agent_python = "{sys.executable}"
silence_s = 5
"""


def test_two_hosts_two_policies_three_raas_and_a_killed_worker(user: User, launcher: str) -> None:
    cluster_runs.check(user, launcher, lambda u, d: cluster_runs.kill_process(u, "raas-1"), hosts=2)


def test_an_encrypted_run_whose_hosts_have_a_certificate_each(user: User, launcher: str) -> None:
    cluster_runs.check_encrypted(user, launcher, ("127.0.0.2", "127.0.0.3"), hosts=2)
