"""How the interpreter is made in which the tracker may live."""

from __future__ import annotations

from astraflow_core.config.environments import PythonEnvironment
from astraflow_core.errors import UserError


def environment(extra: str | None) -> PythonEnvironment:
    """The recipe; there is one extra."""
    if extra not in (None, "runtime"):
        raise UserError(f"plugin 'trackio' has no extra {extra!r}; it has 'runtime'")
    return PythonEnvironment()
