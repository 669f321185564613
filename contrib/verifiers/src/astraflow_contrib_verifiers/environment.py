"""How the interpreter is made in which environments of verifiers run."""

from __future__ import annotations

from astraflow_core.config.environments import PythonEnvironment
from astraflow_core.errors import UserError

V1, V0 = "runtime-v1", "runtime-v0"


def environment(extra: str | None) -> PythonEnvironment:
    """The recipe for ``extra``: verifiers 0.4 unless the older generation is asked for."""
    chosen = extra or V1
    if chosen not in (V1, V0):
        raise UserError(
            f"plugin 'verifiers' has no extra {chosen!r}: {V1!r} is for environments of verifiers 0.4 (tasksets), {V0!r} for "
            "those of 0.2 (load_environment)"
        )
    return PythonEnvironment(extra=chosen)
