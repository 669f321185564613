"""AstraFlow: asynchronous reinforcement learning for language-model agents.

What a plugin's manifest needs is importable from here without loading anything heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from astraflow_core.component import API_VERSION, Component, Kind
from astraflow_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from astraflow_core.launch.api import RunResult, resume, run

__version__ = "0.1.0"
__all__ = [
    "API_VERSION",
    "Component",
    "Kind",
    "RunResult",
    "__version__",
    "hookimpl",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in ("run", "resume", "RunResult"):
        from astraflow_core.launch import api

        return getattr(api, name)
    raise AttributeError(f"module 'astraflow_core' has no attribute {name!r}")
