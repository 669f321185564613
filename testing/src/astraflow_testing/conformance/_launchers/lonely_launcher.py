"""A launcher in a separate interpreter, which is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from astraflow_core.protocols.launcher import Launcher, ProcessSpec
from astraflow_testing.conformance.subject import Subject, context, installed

LONGEST_S = 120.0


class LonelyLauncher(AbstractContextManager["LonelyLauncher"]):
    """Starts one process within ``with``; the launcher is killed at its end. The ``component`` must be made by
    ``installed``."""

    def __init__(
        self, component: Subject, variant: int, directory: Path, spec: ProcessSpec
    ) -> None:
        assert component.recipe is not None, "the fixture `component` must return installed(…)"
        self._words = json.dumps(
            [
                component.recipe.use,
                dict(component.recipe.variants[variant]),
                str(directory),
                [spec.name, spec.role, spec.argv, str(spec.log)],
            ]
        )

    def __enter__(self) -> LonelyLauncher:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self._words}\n")
        self._process.stdin.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._process:
            self._process.kill()


def main() -> None:
    """Start what standard input says, and wait to be killed."""
    use, keys, directory, (name, role, argv, log) = json.loads(sys.stdin.readline())
    (factory,) = installed("launcher", use, keys).variants.values()
    launcher: Launcher = factory(context("launcher", Path(directory)))
    spec = ProcessSpec(name, role, tuple(argv), dict[str, Any](), Path(log))
    launcher.prepare([spec])
    launcher.start(spec)
    time.sleep(LONGEST_S)


if __name__ == "__main__":
    main()
