"""Fixtures for tests of discovery and configuration: fake distributions with plugins, in a folder of their own that
lies first on ``sys.path``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from astraflow_core import catalog
from astraflow_core.catalog import Catalog
from astraflow_core.installed import discovery, entry_points

MANIFEST = """
from astraflow_core import Component, hookimpl
ASTRAFLOW_API = (1, 0)
"""

TOY = """
@hookimpl
def astraflow_engines():
    return [Component("toy_engine", "toy_parts:Part", "engine", "toy_parts:EngineConfig",
                      frozenset({"pause.keep", "pause.wait", "weights.path"}))]

@hookimpl
def astraflow_trainers():
    return [Component("toy_trainer", "toy_parts:Part", "trainer", "toy_parts:TrainerConfig",
                      frozenset({"checkpoint"}))]

@hookimpl
def astraflow_algorithms():
    return [Component("toy_loss", "toy_parts:Part", "algorithm", "toy_parts:LossConfig",
                      frozenset({"reference"}))]

@hookimpl
def astraflow_data_policies():
    return [Component("toy_filter", "toy_parts:Part", "data policy", "toy_parts:FilterConfig",
                      frozenset({"accept"}))]

@hookimpl
def astraflow_transports():
    return [
        Component("toy_full", "toy_parts:Part", "transport", None, frozenset({"full"})),
        Component("toy_ring", "toy_parts:Part", "transport", None, frozenset({"collective"})),
    ]

@hookimpl
def astraflow_workflows():
    return [Component("toy_turn", "toy_parts:Part", "workflow")]

@hookimpl
def astraflow_environments():
    return [Component("toy_room", "toy_parts:Part", "environment", "toy_parts:FileConfig")]

@hookimpl
def astraflow_rewards():
    return [Component("toy_match", "toy_parts:Part", "reward")]

@hookimpl
def astraflow_prompt_sources():
    return [Component("toy_file", "toy_parts:Part", "prompts", "toy_parts:FileConfig")]

@hookimpl
def astraflow_launchers():
    return [Component("toy_start", "toy_parts:Part", "launcher", None, frozenset({"local"}))]

@hookimpl
def astraflow_trackers():
    return [Component("toy_notes", "toy_parts:Part", "tracker")]
"""

TOY_PARTS = """
from pathlib import Path
from typing import Annotated, Literal
from pydantic import Field
from astraflow_core.config.models import ConfigModel
from astraflow_core.types import Prompt

class EngineConfig(ConfigModel):
    slots: int = 4
    cache: Path | None = None

class TrainerConfig(ConfigModel):
    lr: Annotated[float, Field(gt=0, description="Step size.")] = 1e-3
    schedule: float | tuple[tuple[int, float], ...] = 0.0

class LossConfig(ConfigModel):
    clip_low: float = 0.2
    kl: float = 0.0
    compares: str = ""

    @property
    def needs(self):
        return frozenset({"reference"} if self.kl else ())

class FilterConfig(ConfigModel):
    ratio: Annotated[float, Field(ge=0, le=1)] = 0.5
    by: Literal["edf", "fifo"] = "edf"

class FileConfig(ConfigModel):
    path: Path
    extra: tuple[Path, ...] = ()
    title: str = ""

class Part:
    'What the toys are.'

    def __init__(self, config, context):
        self.config, self.context = config, context

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return Prompt("only", {})

    def started(self, run, config): ...
    def metrics(self, group, step, time_s, values): ...
    def ended(self, state, summary, curves): ...

    async def run_episode(self, engines, prompt):
        return None

    async def score(self, view):
        return 0.0
"""

BY_DEFAULT = "three_zones"
"""The plugin that a run uses unless it names another."""
RUN = """
[run]
steps = 3
max_staleness = 1
[prompts]
use = "toy_file"
path = "train.jsonl"
[workflow]
use = "toy_turn"
[policies.solver]
model = "nowhere:x"
batch_sequences = 8
trainer = { use = "toy_trainer" }
algorithm = { use = "toy_loss" }
engine = { use = "toy_engine" }
transport = { use = "toy_full" }
"""


@dataclass
class Site:
    """A folder on ``sys.path`` that distributions are written to."""

    folder: Path

    def add(
        self,
        plugin: str,
        manifest: str,
        *,
        distribution: str = "",
        version: str = "1.0",
        metadata: str = "",
        modules: Mapping[str, str] | None = None,
    ) -> str:
        """Install a distribution with one plugin; returns the name of its manifest module."""
        distribution = distribution or f"fake-{plugin.replace('_', '-')}"
        module = f"{distribution.replace('-', '_')}_manifest"
        for name, source in {module: manifest, **(modules or {})}.items():
            (self.folder / f"{name}.py").write_text(dedent(source))
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{metadata}"
        )
        (info / "entry_points.txt").write_text(f"[astraflow]\n{plugin} = {module}\n")
        importlib.invalidate_caches()
        entry_points.installed.cache_clear()
        entry_points.scan.cache_clear()
        catalog._discover.cache_clear()
        return module

    def toy(self) -> None:
        """Install the plugin ``toy``, which has a component of most kinds."""
        self.add("toy", MANIFEST + TOY, modules={"toy_parts": TOY_PARTS})

    def catalog(self) -> Catalog:
        """The catalog with nothing but the fakes, the runtime and :data:`BY_DEFAULT` importable."""
        fakes = [
            line.partition(" = ")[0]
            for file in self.folder.glob("*.dist-info/entry_points.txt")
            for line in file.read_text().splitlines()[1:]
        ]
        return Catalog.discover(only=sorted([*fakes, BY_DEFAULT]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty site; the modules imported from it are forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.delenv(discovery.DISABLE_VARIABLE, raising=False)
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def manifest() -> str:
    """The head of a healthy manifest."""
    return MANIFEST


@pytest.fixture
def run_file(site: Site, tmp_path: Path) -> Path:
    """A valid run of the plugin ``toy``."""
    site.toy()
    file = tmp_path / "run.toml"
    file.write_text(RUN)
    return file
