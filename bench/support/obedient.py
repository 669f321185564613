"""A module of the benchmarks in a separate process that executes one JSON line after another."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from typing import Any

from bench.support.processes import ROOT

ANSWER_S = 300.0


class Obedient:
    """``python -m MODULE ORDER``, with ``ORDER`` as JSON; it ends when its input does."""

    def __init__(self, module: str, **order: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(order)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, **order: object) -> None:
        """Send an order; :meth:`answer` waits for its result."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The result of the oldest order that is not answered yet."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], ANSWER_S)[0]:
            raise RuntimeError(f"it did not answer within {ANSWER_S:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"it exited with code {self.process.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **order: object) -> dict[str, Any]:
        """Order and answer."""
        self.order(**order)
        return self.answer()

    def close(self) -> None:
        """Close its input, and wait until it has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
