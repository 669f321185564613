"""Fixtures: a stand-in for a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stand_in_cluster import StandInCluster, stand_in_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInCluster]:
    """Nodes of which the API server of the kubeconfig knows."""
    with stand_in_cluster(tmp_path_factory.mktemp("cluster")) as made:
        before = os.environ.get("KUBECONFIG")
        os.environ["KUBECONFIG"] = str(made.kubeconfig)
        yield made
        os.environ.pop("KUBECONFIG")
        if before is not None:
            os.environ["KUBECONFIG"] = before
