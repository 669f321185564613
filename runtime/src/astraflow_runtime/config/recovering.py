"""Which trainers can continue with the weights of a published version after they have lost their state."""

from __future__ import annotations

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.models import RunConfig, TrainerTable
from astraflow_core.errors import PluginError


def recovery_obstacle(trainer: TrainerTable, flags: frozenset[str]) -> str:
    """Why a trainer with the capabilities ``flags`` cannot do that, as a sentence; empty if it can."""
    if "adopt" in flags:
        return ""
    return (
        "It cannot continue with the weights of a published version: "
        f"trainer {trainer.use!r} lacks the capability adopt"
    )


def all_recover(config: RunConfig, catalog: Catalog) -> bool:
    """Whether every trainer of the run continues with a published version if it has lost its state."""
    tables = [table.trainer for table in config.policies.values()]
    try:
        able = [not recovery_obstacle(t, catalog.flags(Kind.TRAINER, t.use)) for t in tables]
    except PluginError:  # it is installed in its own interpreter only
        return False
    return config.checkpoint.recover and all(able)
