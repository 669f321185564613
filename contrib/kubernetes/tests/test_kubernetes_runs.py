"""Whole runs on a stand-in for a cluster, and generated manifests beside the published schemas."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from published_schemas import VERSIONS, complaints
from stand_in_cluster import StandInCluster

from astraflow_testing import cluster_runs
from astraflow_testing.runs import TABLE_RUN, User

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.turns(
        "contrib/kubernetes/**/*.py",
        "libs/launching/src/**/*.py",
        "runtime/src/astraflow_runtime/launch/**/*.py",
        "testing/src/astraflow_testing/cluster_runs.py",
    ),
]

LAUNCHER = f"""
use = "kubernetes"
image = "astraflow:test"
agent_python = "{sys.executable}"
silence_s = 10
"""


@pytest.fixture
def user(tmp_path: Path, cluster: StandInCluster) -> Iterator[User]:
    somebody = User(tmp_path)
    yield somebody
    somebody.close()


def test_two_pods_two_policies_three_raas_and_a_killed_worker(
    user: User, cluster: StandInCluster
) -> None:
    launcher = f"{LAUNCHER}raas = {{ count = 2 }}\n"
    cluster_runs.check(user, launcher, lambda u, d: cluster_runs.kill_process(u, "raas-1"), hosts=2)
    assert cluster.named("jobs") == cluster.named("secrets") == cluster.named("pods") == []


def test_what_plan_prints_is_valid(user: User) -> None:
    """``astraflow plan --launcher``, by the published schemas of two versions."""
    user.write("run.toml", f"{TABLE_RUN}\n[launcher]\n{LAUNCHER}\n")
    printed = user.astraflow("plan", "run.toml", "--launcher")
    assert printed.exit_code == 0, printed.text
    made = list(yaml.safe_load_all(printed.out))
    assert [each["kind"] for each in made] == [
        "ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim", "ConfigMap", "Job",
    ]  # fmt: skip
    for version in VERSIONS:
        assert {each["kind"]: complaints(each, version) for each in made} == {
            each["kind"]: [] for each in made
        }
    wrong = {**made[-1], "spec": {**made[-1]["spec"], "backofLimit": 3}}
    assert "backofLimit" in complaints(wrong, VERSIONS[0])[0]
