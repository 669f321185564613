"""How the interpreter is made in which servers of OpenEnv run."""

from __future__ import annotations

from astraflow_core.config.environments import PythonEnvironment


def environment(extra: str | None) -> PythonEnvironment:
    """The recipe: openenv of the proved version, unless another extra is asked for."""
    return PythonEnvironment(extra=extra or "runtime")
