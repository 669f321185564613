"""The command of a process that plays, and what it may know."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from astraflow_contrib_verifiers.config import WorkerKeys
from astraflow_core.config.environments import SCHEME, interpreter
from astraflow_core.errors import PreflightError

WORKER_PATH = Path(__file__).with_name("worker_path")
_MAIN = Path(__file__).parent / "verifiers_worker" / "__main__.py"


def command(keys: WorkerKeys, who: str, *arguments: str) -> list[str]:
    """How the worker is started. :class:`PreflightError` if the interpreter does not exist; ``who`` has the key."""
    python = interpreter(keys.python)
    if shutil.which(python) is None:
        name = keys.python.removeprefix(SCHEME)
        advice = (
            f"make it: astraflow env create {name} --plugin verifiers (--extra runtime-v0 for environments with "
            "load_environment), and install the environment there"
            if keys.python.startswith(SCHEME)
            else "name an interpreter that has verifiers and the environment, such as /path/to/venv/bin/python"
        )
        raise PreflightError(
            f"{who}: python is {keys.python!r}, which is not an interpreter here ({python}): {advice}"
        )
    if keys.folder is not None and not keys.folder.is_dir():
        raise PreflightError(
            f"{who}: folder is {str(keys.folder)!r}, which is not a folder here; expected that of the environment's module"
        )
    return [python, str(_MAIN), *arguments]


def variables(keys: WorkerKeys, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process without what belongs to AstraFlow, such as the run's token; ``more`` on top."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ASTRAFLOW_")}
    path = [str(WORKER_PATH)]
    if keys.folder is not None:
        path.append(str(keys.folder.absolute()))
    return {**kept, "PYTHONPATH": os.pathsep.join(path), **more}
