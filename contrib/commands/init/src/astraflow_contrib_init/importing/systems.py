"""The systems whose configurations are read, and which of them a file is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astraflow_contrib_init.importing import prime_rl, public_astraflow, trl, verl
from astraflow_contrib_init.importing.draft import System
from astraflow_core.errors import UserError

SYSTEMS: dict[str, System] = {
    "astraflow": public_astraflow.SYSTEM,
    "prime-rl": prime_rl.SYSTEM,
    "trl": trl.SYSTEM,
    "verl": verl.SYSTEM,
}


def system_of(nested: Mapping[str, Any]) -> System:
    """The only system with one of its marks among the names at the top; :class:`UserError` if there is none, or several."""
    fitting = [
        system for system in SYSTEMS.values() if any(mark in nested for mark in system.marks)
    ]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(list(nested)[:8])
    what = (
        f"may be of {' or '.join(each.title for each in fitting)}"
        if fitting
        else "is not a configuration of a known system"
    )
    raise UserError(
        f"a configuration with {names} {what}; say which it is: --from {', '.join(SYSTEMS)}"
    )
