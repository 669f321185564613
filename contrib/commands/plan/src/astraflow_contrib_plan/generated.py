"""The files that a launcher generates for a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from astraflow_core.config.load import LoadedConfig
from astraflow_core.errors import UserError
from astraflow_runtime.launch.planning.plan import plan

PROGRAM = (sys.executable, "-m", "astraflow_runtime")


def generated_files(loaded: LoadedConfig, file: str, overrides: Sequence[str]) -> Mapping[str, str]:
    """Name → text, by ``generated_files`` of the launcher's class. :class:`UserError` if it has none."""
    config = loaded.config
    selected, keys = loaded.components["launcher"]
    make = getattr(selected.load(selected.component.target), "generated_files", None)
    if make is None:
        raise UserError(
            f"the launcher {config.launcher.use!r} generates no files; set [launcher] use to one that does, such as "
            "'slurm'"
        )
    runs = Path(config.run.directory).absolute()
    arguments = [str(Path(file).absolute())]
    for each in overrides:
        arguments += ["--set", each]
    specs = plan(config, runs / config.run.name, "", 0)
    files: Mapping[str, str] = make(keys, config.run.name, specs, PROGRAM, arguments, str(runs))
    return files
