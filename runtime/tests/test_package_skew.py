"""A process with other packages than the dataflow of its run is refused, and both versions are named."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.config.load import read_config
from astraflow_core.errors import Refused, VersionSkew
from astraflow_runtime.package_skew import (
    ARTIFACT_FILE,
    check_packages,
    if_stated,
    packages_of_run,
)
from astraflow_testing.runs import TABLE_RUN

CORE = metadata.version("astraflow-core")


def test_the_dataflow_states_the_packages_that_its_config_names(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TABLE_RUN)
    stated = packages_of_run(read_config(tmp_path / "run.toml").config, Catalog.discover())
    assert {"astraflow-core", "astraflow-runtime", "astraflow-plugin-http", "astraflow-contrib-rewards"} <= set(
        stated["distributions"]
    )  # fmt: skip
    check_packages(stated, "raas-0")


def test_another_version_is_refused_with_both_named() -> None:
    theirs = {"distributions": {"astraflow-core": "9.9.9", "pip": metadata.version("pip")}, "artifact": ""}  # fmt: skip
    with pytest.raises(
        VersionSkew, match=rf"raas-1 has astraflow-core {CORE}, and the dataflow has 9\.9\.9:"
    ):
        check_packages(theirs, "raas-1")


def test_what_is_not_installed_here_is_not_compared() -> None:
    check_packages({"distributions": {"no-such-distribution": "1"}, "artifact": "ab"}, "raas-1")


def test_another_artifact_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / ARTIFACT_FILE).write_text(json.dumps({"digest": "cd34"}))
    check_packages({"distributions": {}, "artifact": "cd34"}, "the trainer of solver")
    with pytest.raises(VersionSkew, match="from artifact cd34, and the dataflow from ab12: unpack"):
        check_packages({"distributions": {}, "artifact": "ab12"}, "the trainer of solver")


def test_only_a_dataflow_without_the_view_is_passed_over() -> None:
    with if_stated():
        raise Refused(404, "no such path")
    with pytest.raises(Refused), if_stated():
        raise Refused(403, "not yours")
