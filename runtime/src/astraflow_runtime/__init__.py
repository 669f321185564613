"""The services, the launcher and the command ``astraflow``; :func:`run` starts a run from Python,
:func:`load_run` looks at one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astraflow_runtime.launch.api import LoadedRun, RunResult, load_run, resume, run

__all__ = ["LoadedRun", "RunResult", "load_run", "resume", "run"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from astraflow_runtime.launch import api

        return getattr(api, name)
    raise AttributeError(f"module 'astraflow_runtime' has no attribute {name!r}")
