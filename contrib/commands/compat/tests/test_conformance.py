"""The command keeps what every command keeps; tests/test_manifests.py looks at its manifest."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from astraflow_contrib_compat import serving
from astraflow_contrib_compat.config import CompatConfig, read_compat
from astraflow_core.errors import ConfigError, UserError
from astraflow_runtime.config.auto_transport import Joined
from astraflow_testing.conformance.command import CommandConformance
from astraflow_testing.runs import TABLE_RUN


class TestCompatCommand(CommandConformance):
    @pytest.fixture
    def command(self) -> str:
        return "compat raas"


class TestCompatDataflowCommand(CommandConformance):
    @pytest.fixture
    def command(self) -> str:
        return "compat dataflow"


class TestCompatTrainerCommand(CommandConformance):
    @pytest.fixture
    def command(self) -> str:
        return "compat trainer"


WORKFLOW = "key_file = 'k'\n[workflow]\nworkflow_cls = 'rlvr'\n"


def test_every_problem_of_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "compat.toml"
    with pytest.raises(UserError, match="cannot be read"):
        read_compat(file, CompatConfig)
    for text, reason in (
        ("=", "not TOML"), ("key_file = 'k'", "workflow: Field required"), ("x = 1\n" + WORKFLOW, "x: Extra inputs"),
        ("submission = 'half'\n" + WORKFLOW, "submission: Input should be 'group' or 'episode'"),
        ("models = { a = 'm', b = 'm' }\n" + WORKFLOW, "two policies have the same id"),
        ("call_s = 0\n" + WORKFLOW, "call_s"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(ConfigError, match=reason):
            read_compat(file, CompatConfig)
    file.write_text("models = { a = 'model1', b = 'model0' }\n" + WORKFLOW)
    config = read_compat(file, CompatConfig)
    assert config.key_file == tmp_path / "k"
    assert config.model_ids(["a", "b"]) == {"a": "model1", "b": "model0"}
    with pytest.raises(UserError, match="name each once"):
        config.model_ids(["a"])
    file.write_text(WORKFLOW)
    assert read_compat(file, CompatConfig).model_ids(["x", "y"]) == {"x": "model0", "y": "model1"}


def test_a_transport_that_the_run_chose_is_fetched_from_the_dataflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter asks the dataflow, as every process that joins a run does."""
    file = tmp_path / "run.toml"
    file.write_text(TABLE_RUN.replace('use = "http"', 'use = "auto"'))
    asked = []
    monkeypatch.setattr(
        serving, "joined", lambda url, token: asked.append((url, token)) or Joined({}, "secret")
    )
    arguments = argparse.Namespace(file=str(file), overrides=[])
    loaded = serving.read_run(arguments, "http://127.0.0.1:9", "token")
    assert asked == [("http://127.0.0.1:9", "token")]
    assert loaded.config.policies["solver"].transport.use != "auto"
