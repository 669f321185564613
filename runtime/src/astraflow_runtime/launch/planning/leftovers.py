"""What processes that were killed leave half-done in a run directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from astraflow_wire.host.private_folder import remove_orphans

_HALF_WRITTEN = ("models/.*.partial", "checkpoints/*/.update-*.partial")
_RECEIVING = "received-"


def clear_leftovers(directory: Path) -> None:
    """Remove models and checkpoints that were never whole, and weights that a RaaS which is gone was receiving. No
    process of the run writes any longer."""
    for pattern in _HALF_WRITTEN:
        for folder in directory.glob(pattern):
            shutil.rmtree(folder, ignore_errors=True)
    for received in directory.glob(f"state/**/{_RECEIVING}*"):
        remove_orphans(received.parent, _RECEIVING)
