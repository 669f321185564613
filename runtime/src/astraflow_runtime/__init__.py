"""The services, the launcher and the command ``astraflow``; :func:`run` starts a run from Python, :class:`Run` starts one
in the background of a program, :func:`load_run` loads one, :func:`evaluate_loss` evaluates a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astraflow_runtime.launch.api import LoadedRun, RunResult, load_run, resume, run
    from astraflow_runtime.launch.embedding import Run, RunEvent
    from astraflow_runtime.launch.losses import LossEvaluation, evaluate_loss

__all__ = [
    "LoadedRun",
    "LossEvaluation",
    "Run",
    "RunEvent",
    "RunResult",
    "evaluate_loss",
    "load_run",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in ("LossEvaluation", "evaluate_loss"):
        from astraflow_runtime.launch import losses

        return getattr(losses, name)
    if name in ("Run", "RunEvent"):
        from astraflow_runtime.launch import embedding

        return getattr(embedding, name)
    if name in __all__:
        from astraflow_runtime.launch import api

        return getattr(api, name)
    raise AttributeError(f"module 'astraflow_runtime' has no attribute {name!r}")
