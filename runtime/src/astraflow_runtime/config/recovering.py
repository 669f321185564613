"""Which trainers can continue with the weights of a published version after they have lost their state."""

from __future__ import annotations

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.models import RunConfig, TrainerTable
from astraflow_core.errors import PluginError


def recovery_obstacle(trainer: TrainerTable, flags: frozenset[str], adapter: bool = False) -> str:
    """Why a trainer with the capabilities ``flags`` cannot do that, as a sentence; empty if it can. ``adapter``: its
    versions are adapters."""
    if trainer.ranks > 1:
        why = "it has several ranks"
    elif "adopt" not in flags:
        why = f"trainer {trainer.use!r} lacks the capability adopt"
    elif adapter:
        why = "its versions are adapters"
    else:
        return ""
    return f"It cannot continue with the weights of a published version: {why}"


def all_recover(config: RunConfig, catalog: Catalog) -> bool:
    """Whether every trainer of the run continues with a published version if it has lost its state."""
    tables = [table.trainer for table in config.policies.values()]
    try:
        able = [not recovery_obstacle(t, catalog.flags(Kind.TRAINER, t.use)) for t in tables]
    except PluginError:  # it is installed in its own interpreter only
        return False
    return config.checkpoint.recover and all(able)
