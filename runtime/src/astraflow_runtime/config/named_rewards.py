"""Which rewards the algorithms of a run read by name, and which columns they need of each sequence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import PluginError
from astraflow_wire.column_table import SPARSE_COLUMNS
from astraflow_wire.episode_metrics import unsendable
from astraflow_wire.limits import MAX_EPISODE_METRICS

HOW = (
    'name it as a part of [reward] use = "rubric", or give every episode a metric of that name: '
    "Trajectory.metrics of a workflow, RewardReport.metrics of a reward"
)


def named_rewards_of_policy(config: RunConfig, catalog: Catalog, policy: str) -> tuple[str, ...]:
    """Names of the rewards that the algorithm of ``policy``, with its keys, reads by name."""
    table = config.policies[policy].algorithm
    _, keys = catalog.validate(Kind.ALGORITHM, table, f"policies.{policy}.algorithm")
    return _checked(table.use, getattr(keys, "named_rewards", ()))


def columns_of_policy(config: RunConfig, catalog: Catalog, policy: str) -> tuple[str, ...]:
    """Names of the sparse columns that the algorithm of ``policy``, with its keys, needs of each sequence."""
    table = config.policies[policy].algorithm
    _, keys = catalog.validate(Kind.ALGORITHM, table, f"policies.{policy}.algorithm")
    names = tuple(getattr(keys, "episode_columns", ()))
    known = [column.name for column in SPARSE_COLUMNS]
    if unknown := [name for name in names if name not in known]:
        raise PluginError(
            f"algorithm {table.use!r}: episode_columns of its keys names {unknown[0]!r}; expected some of "
            f"{', '.join(known)}"
        )
    return names


def missing_rewards(names: Iterable[str], policy: str, metrics: Mapping[str, float]) -> list[str]:
    """Those of ``names`` that an episode with these metrics does not have for ``policy``."""
    return [name for name in names if not {name, f"{name}/{policy}"} & metrics.keys()]


def _checked(algorithm: str, names: Any) -> tuple[str, ...]:
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise PluginError(
            f"algorithm {algorithm!r}: named_rewards of its keys is {names!r:.200}; expected a tuple of names"
        )
    for name in names:
        if problem := unsendable(name, 0.0):
            raise PluginError(f"algorithm {algorithm!r}: named reward {name!r:.200}: {problem}")
    if len(set(names)) < len(names) or len(names) > MAX_EPISODE_METRICS:
        raise PluginError(
            f"algorithm {algorithm!r}: named_rewards has {len(names)} names; expected at most {MAX_EPISODE_METRICS}, "
            "each once"
        )
    return names
