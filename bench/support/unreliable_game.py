"""A text game in worker processes that fails as its task says, and what else an environment leaves behind."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt

FAULTS = ("crash", "hang", "leak", "nan", "type", "raise", "daemon")
LEAK_BYTES = 1 << 30
_ENDLESS = ["sleep", "3600"]


class UnreliableGame:
    """Counts to three in three moves. Each episode writes a file into a temporary folder that is not removed and starts a
    process that does not end; with ``data["fault"]`` its second move crashes the worker, hangs, takes 1 GiB, gives a reward
    that is not a number, or no observation at all, or raises; ``daemon`` leaves a process of another session."""

    capabilities = frozenset({"blocking", "deterministic"})

    def __init__(self, config: None, context: ComponentContext) -> None:
        self._moves = 0
        self._fault = ""
        self._children: list[subprocess.Popen[bytes]] = []

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin."""
        self._moves, self._fault = 0, task.data["fault"]
        if self._fault:
            Path(tempfile.mkdtemp(), "left").write_text("left", encoding="utf-8")
            detached = self._fault == "daemon"
            self._children.append(subprocess.Popen(_ENDLESS, start_new_session=detached))
        return Observation(({"role": "user", "content": "0"},))

    def step(self, action: Action) -> Any:
        """Count, or fail."""
        self._moves += 1
        if self._moves == 2:
            match self._fault:
                case "crash" | "daemon":
                    ctypes.string_at(0)
                case "hang":
                    time.sleep(3600)
                case "leak":
                    self._leaked = bytearray(LEAK_BYTES)
                case "nan":
                    return Observation((), float("nan"), Outcome.FINISHED)
                case "type":
                    return [self._moves]
                case "raise":
                    raise RuntimeError("the board is broken")
        over = Outcome.FINISHED if self._moves == 3 else None
        return Observation(({"role": "user", "content": str(self._moves)},), 1 / 3, over)

    def close(self) -> None:
        """There is nothing that it frees."""
