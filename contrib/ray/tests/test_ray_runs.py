"""Whole runs on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing import cluster_runs
from astraflow_testing.runs import User

pytestmark = pytest.mark.backend


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    somebody = User(tmp_path)
    yield somebody
    somebody.close()


def test_two_nodes_two_policies_three_raas_and_a_killed_worker(user: User, cluster: Any) -> None:
    launcher = (
        f'use = "ray"\naddress = "{cluster.address}"\nraas = {{ gpus = 1 }}\nsilence_s = 10\n'
    )
    cluster_runs.check(user, launcher, lambda u, d: cluster_runs.kill_process(u, "raas-1"), hosts=2)


@pytest.mark.slow
def test_an_encrypted_run(user: User, cluster: Any) -> None:
    """The agents' link has a certificate of its own; Ray's own connections are Ray's."""
    launcher = (
        f'use = "ray"\naddress = "{cluster.address}"\nraas = {{ gpus = 1 }}\nsilence_s = 10\n'
    )
    address = cluster.head_node.node_ip_address
    cluster_runs.check_encrypted(user, launcher, (address,), hosts=2)
