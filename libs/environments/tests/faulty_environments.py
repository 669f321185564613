"""Environments that do what their task says, also what no environment should."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_core.config.models import ConfigModel
from astraflow_core.errors import EnvironmentFailed, PromptError
from astraflow_core.types import Action, Observation, Outcome, Prompt

ENDLESS_S = 600.0


class Obeys:
    """Repeats each action, and executes the order in it."""

    class Config(ConfigModel):
        """Its keys."""

        step: float = 1.0
        metrics: tuple[str, ...] = ()

    capabilities = frozenset({"blocking"})

    def __init__(self, config: Config, context: Any) -> None:
        self.config, self.context, self.said = config, context, 0
        self.episodes = 0

    def reset(self, task: Prompt, seed: int) -> Any:
        self.said, self.episodes = 0, self.episodes + 1
        self.obey(task.data.get("order", ""))
        facts = [task.id, str(seed), str(os.getpid()), str(self.episodes), str(random.random())]
        return Observation(({"role": "user", "content": " ".join(facts)},))

    def step(self, action: Action) -> Any:
        self.said += 1
        result = self.obey(action.text)
        if result is not None:
            return result
        over = Outcome.FINISHED if action.text == "end" else None
        messages = ({"role": "user", "content": f"{self.said}: {action.text}"},)
        reward: Any = np.float32(self.config.step)
        said: Any = np.int64(self.said)
        return Observation(messages, reward, over, metrics={"said": said})

    def close(self) -> None:
        self.said = 0

    def obey(self, order: str) -> Any:
        what, _, about = order.partition(" ")
        match what:
            case "hang":
                time.sleep(ENDLESS_S)
            case "spawn":
                child = subprocess.Popen(
                    [sys.executable, "-c", f"import time; time.sleep({ENDLESS_S})"]
                )
                Path(about).write_text(str(child.pid))
                time.sleep(ENDLESS_S)
            case "litter":
                Path(tempfile.mkdtemp(), "litter").touch()
            case "daemon":
                daemon = subprocess.Popen(["sleep", str(ENDLESS_S)], start_new_session=True)
                return Observation(({"role": "user", "content": str(daemon.pid)},))
            case "exit":
                os._exit(int(about))
            case "crash":
                ctypes.string_at(0)
            case "raise":
                raise ValueError(about)
            case "fail":
                raise EnvironmentFailed("network", about)
            case "refuse":
                raise PromptError(about)
            case "allocate":
                return Observation(({"role": "user", "content": str(len(bytearray(int(about))))},))
            case "other":
                return {"messages": []}
            case "reward":
                return Observation(({"role": "user", "content": ""},), float(about))
            case "object":
                return Observation(({"role": "user", "content": [object()]},))
            case "large":
                return Observation(({"role": "user", "content": "x" * int(about)},))
        return None


class Unbuildable(Obeys):
    """Cannot be built."""

    def __init__(self, config: Any, context: Any) -> None:
        raise RuntimeError("no display")


class DiesWhenBuilt(Obeys):
    """Ends its worker process while it is built."""

    def __init__(self, config: Any, context: Any) -> None:
        os._exit(9)


class OnLoop:
    """The same, on the event loop."""

    def __init__(self, config: Any, context: Any) -> None:
        self.real = Obeys(Obeys.Config(), context)

    async def reset(self, task: Prompt, seed: int) -> Any:
        return self.real.reset(task, seed)

    async def step(self, action: Action) -> Any:
        if action.text == "hang":
            import asyncio

            await asyncio.sleep(ENDLESS_S)
        return self.real.step(action)

    async def close(self) -> None:
        self.real.close()


class Plain(Obeys):
    """Has plain functions, and does not declare that they may block."""

    capabilities = frozenset()


class Awaits(OnLoop):
    """Declares that it blocks, but has async methods."""

    capabilities = frozenset({"blocking"})


class Repeats(Obeys):
    """Is deterministic, so that its instances share worker processes."""

    capabilities = frozenset({"blocking", "deterministic"})

    def reset(self, task: Prompt, seed: int) -> Any:
        self.said = 0
        self.obey(task.data.get("order", ""))
        return Observation(({"role": "user", "content": f"{task.id} {seed}"},))

    def obey(self, order: str) -> Any:
        what, _, about = order.partition(" ")
        if what == "note":
            with Path(about).open("a", encoding="ascii") as notes:
                notes.write(f"{os.getpid()}\n")
        return super().obey(order)


class SaysSo(Repeats):
    """Declares that it is deterministic, and is not."""

    def reset(self, task: Prompt, seed: int) -> Any:
        return Observation(({"role": "user", "content": str(os.getpid())},))
