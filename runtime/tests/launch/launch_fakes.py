"""Components for launcher tests: a launcher that starts ``fake_service.py`` in place of real services."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_core.types import Prompt
from astraflow_runtime.launch.local.config import LocalLauncherConfig
from astraflow_runtime.launch.local.launcher import LocalLauncher

SERVICE = Path(__file__).with_name("fake_service.py")


class FakeLauncher(LocalLauncher):
    """``behaviour``: process name → what it does instead of the usual."""

    class Config(LocalLauncherConfig):
        behaviour: dict[str, str] = Field({})
        steps_per_s: float = 100.0

    def start(self, spec: ProcessSpec) -> None:
        directory = spec.log.parent.parent
        behaviour = self._config.behaviour.get(spec.name, "")
        argv = (sys.executable, "-S", str(SERVICE), spec.role, spec.name, str(directory), behaviour)
        super().start(replace(spec, argv=(*argv, str(self._config.steps_per_s))))


class Part:
    """An engine, trainer, algorithm, transport, workflow or reward that is only ever named."""

    capabilities = ("pause.keep", "weights.path", "full")

    def __init__(self, config: object, context: object) -> None:
        pass


class Engine(Part):
    capabilities = ("pause.keep", "weights.path")


class ScoringEngine(Part):
    capabilities = ("pause.keep", "weights.path", "score")


class Transport(Part):
    capabilities = ("full",)


class Plain(Part):
    capabilities = ()

    async def run_episode(self, engines: object, prompt: object) -> None:
        """Rejects every sample."""

    async def score(self, view: object) -> float:
        return 0.0


class BrokenReward(Plain):
    def __init__(self, config: object, context: object) -> None:
        raise ValueError("the unit tests file is lost")


class Prompts:
    class Config(ConfigModel):
        count: int = 3
        broken: bool = False

    def __init__(self, config: Config, context: object) -> None:
        self.config = config

    def __len__(self) -> int:
        return self.config.count

    def __getitem__(self, index: int) -> Prompt:
        if self.config.broken:
            raise KeyError("prompt")
        return Prompt(str(index), {"prompt": "1+1=", "answer": "2"})
