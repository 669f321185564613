"""How the interpreter is made in which TextWorld plays."""

from __future__ import annotations

from astraflow_core.config.environments import PythonEnvironment
from astraflow_core.errors import UserError

LEAN, WHOLE = "runtime-lean", "runtime"


def environment(extra: str | None) -> PythonEnvironment:
    """The recipe for ``extra``: what TextWorld imports, unless all is asked for that jericho names as its dependencies."""
    chosen = extra or LEAN
    if chosen == LEAN:
        return PythonEnvironment(extra=LEAN, finish="astraflow_contrib_textworld.finish")
    if chosen == WHOLE:
        return PythonEnvironment(extra=WHOLE)
    raise UserError(
        f"plugin 'textworld' has no extra {chosen!r}: {LEAN!r} is what TextWorld imports, {WHOLE!r} has spaCy as well"
    )
