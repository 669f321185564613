"""The first lines of a run."""

from __future__ import annotations

import tomllib
from pathlib import Path

from astraflow_core.catalog import Catalog
from astraflow_core.config.models import RunConfig
from astraflow_runtime.hooks import Hooks
from astraflow_runtime.launch.planning.header import header
from astraflow_runtime.launch.planning.prepare import Prepared

RUN = """
run = { name = "guess", steps = 3, max_staleness = 1, group_size = 2 }
prompts = { use = "numbers" }
workflow = { use = "environment", environment = { use = "maze", size = 4 } }
policies.solver = { model = "m", batch_sequences = 4, engine = { use = "e" }, trainer = { use = "t" }, algorithm = { use = "a" }, transport = { use = "http" } }
"""


def told(text: str, *plugins: dict[str, object]) -> list[str]:
    config = RunConfig.model_validate(tomllib.loads(text))
    catalog = Catalog([])
    prepared = Prepared(config, catalog, Hooks([]), Path("/runs/guess"), "", list(plugins), {})
    return header(prepared).splitlines()


def test_the_environment_is_named_with_the_version_of_its_plugin() -> None:
    plugin = {
        "plugin": "mazes",
        "version": "1.2",
        "packaged": True,
        "components": {"workflow.environment": "maze"},
    }
    lines = told(RUN, plugin)
    assert lines[0] == "run guess: 3 steps, seed 0"
    assert "  workflow     environment (unpackaged)" in lines
    assert lines[lines.index("  workflow     environment (unpackaged)") + 1] == (
        "  environment  maze (mazes 1.2)"
    )
    without = told(RUN.replace(", environment = {", ", maze = {"))
    assert not [line for line in without if line.startswith("  environment")]


def test_a_launcher_and_trackers_are_named_if_the_run_names_them() -> None:
    assert not [line for line in told(RUN) if "launcher" in line or "tracker" in line]
    lines = told(
        RUN + 'launcher = { use = "ssh", hosts = ["a"] }\ntrackers.wandb = { use = "wandb" }\n'
    )
    assert "  launcher       ssh (unpackaged)" in lines
    assert "  tracker wandb  wandb (unpackaged)" in lines
