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
from astraflow_runtime.package_skew import ARTIFACT_FILE, package_skew, packages_of_run
from astraflow_runtime.trainer.upstream import DataflowClient
from astraflow_testing.runs import TABLE_RUN
from astraflow_wire.limits import ARTIFACT

CORE = metadata.version("astraflow-core")


def of_the_run(folder: Path) -> dict[str, str]:
    (folder / "run.toml").write_text(TABLE_RUN)
    return packages_of_run(read_config(folder / "run.toml").config, Catalog.discover())


def test_a_process_states_what_the_config_names_and_its_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = of_the_run(tmp_path)
    wanted = ("astraflow-core", "astraflow-runtime", "astraflow-plugin-http", "astraflow-contrib-rewards")  # fmt: skip
    assert {name: metadata.version(name) for name in wanted}.items() <= stated.items()
    assert ARTIFACT not in stated
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / ARTIFACT_FILE).write_text(json.dumps({"digest": "cd34"}))
    assert of_the_run(tmp_path)[ARTIFACT] == "cd34"


def test_another_version_or_artifact_is_refused_with_both_named() -> None:
    ours = {"astraflow-core": "9.9.9", "pip": "1", ARTIFACT: "ab12"}
    theirs = {"astraflow-core": CORE, "pip": "1", ARTIFACT: "cd34"}
    assert package_skew("raas-1", theirs, ours).startswith(
        "raas-1 has astraflow pack cd34, and the dataflow has ab12; "
        f"astraflow-core {CORE}, and the dataflow has 9.9.9: install the same versions"
    )
    assert package_skew("raas-1", ours, ours) == ""


def test_what_only_one_of_them_states_is_not_compared() -> None:
    assert package_skew("raas-1", {"no-such-distribution": "1", ARTIFACT: "ab"}, {"pip": "1"}) == ""
    assert package_skew("raas of other software", {}, {"pip": "1"}) == ""


class _Refusing:
    """A dataflow that refuses with ``status``."""

    def __init__(self, status: int) -> None:
        self.status = status

    def post(self, *_: object, **__: object) -> None:
        raise Refused(self.status, "the trainer of solver has pip 1, and the dataflow has 2")


def test_a_refused_trainer_ends_and_does_not_look_for_weights_to_recover() -> None:
    for status, expected in ((412, VersionSkew), (409, Refused)):
        client = DataflowClient(_Refusing(status), "solver", 5.0)  # type: ignore[arg-type]
        with pytest.raises(expected, match="has pip 1, and the dataflow has 2"):
            client.register([0], 5.0)
