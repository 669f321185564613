"""The list of all places where a run names components."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from astraflow_core.component import Kind
from astraflow_core.config.models import (
    BalanceTable,
    ComponentTable,
    DataPolicyTable,
    EngineTable,
    FrozenEngineTable,
    LauncherTable,
    PartTable,
    PromptsTable,
    RunConfig,
    TrackerTable,
    TrainerTable,
)

AUTO = "auto"
"""``transport.use = "auto"``: a plugin of the run chooses."""


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A component table of a run: its dotted path, kind, model, and the table (model or raw mapping)."""

    path: str
    kind: Kind
    model: type[ComponentTable]
    table: Any

    @property
    def core_keys(self) -> frozenset[str]:
        """Keys of the table that belong to the core."""
        own = frozenset(self.model.model_fields)
        return own | FrozenEngineTable.training_keys() if self.model is FrozenEngineTable else own


_OF_POLICY: tuple[tuple[str, Kind, type[ComponentTable]], ...] = (
    ("trainer", Kind.TRAINER, TrainerTable),
    ("algorithm", Kind.ALGORITHM, ComponentTable),
    ("engine", Kind.ENGINE, EngineTable),
    ("transport", Kind.TRANSPORT, ComponentTable),
)


def component_tables(config: RunConfig | Mapping[str, Any]) -> Iterator[TablePlace]:
    """Every component table of a validated config, or of raw TOML as far as it has the right shape."""
    prompts = _get(config, "prompts")
    yield from _sources("prompts", PromptsTable, prompts)
    yield from _list("prompts.data", prompts)
    workflow = _get(config, "workflow")
    environment = _get(workflow, "environment")
    yield from _nested("workflow.environment", Kind.ENVIRONMENT, workflow, environment)
    yield from _place("workflow", Kind.WORKFLOW, ComponentTable, workflow)
    yield from _reward(_get(config, "reward"))
    for name, policy in _items(_get(config, "policies")):
        for key, kind, model in _OF_POLICY:
            yield from _place(f"policies.{name}.{key}", kind, model, _get(policy, key))
        yield from _list(f"policies.{name}.data", policy)
    for name, table in _items(_get(config, "engines")):
        yield from _place(f"engines.{name}", Kind.ENGINE, FrozenEngineTable, table)
    for name, table in _items(_get(_get(config, "eval"), "sets")):
        yield from _sources(f"eval.sets.{name}", ComponentTable, table)
    yield from _place("balance", Kind.DATA_POLICY, BalanceTable, _get(config, "balance"))
    yield from _place("launcher", Kind.LAUNCHER, LauncherTable, _get(config, "launcher"))
    for name, table in _items(_get(config, "trackers")):
        yield from _place(f"trackers.{name}", Kind.TRACKER, TrackerTable, table)


def _place(path: str, kind: Kind, model: type[ComponentTable], table: Any) -> Iterator[TablePlace]:
    if isinstance(table, Mapping | ComponentTable):
        yield TablePlace(path, kind, model, table)


def _sources(path: str, model: type[ComponentTable], table: Any) -> Iterator[TablePlace]:
    """The table of a prompt source, after those of the sources that it combines: its ``source``, and each of its
    ``sources`` and of those that it is screened ``against``."""
    made_of = [(f"{path}.source", _own(table, "source"))]
    for key in ("sources", "against"):
        made_of += [(f"{path}.{key}.{name}", each) for name, each in _items(_own(table, key))]
    for place, nested in made_of:
        for each in _nested(place, Kind.PROMPT_SOURCE, table, nested):
            yield from _sources(place, ComponentTable, each.table)
    yield from _place(path, Kind.PROMPT_SOURCE, model, table)


def _reward(table: Any) -> Iterator[TablePlace]:
    """The table of the reward, after those of the rewards that are its ``parts``."""
    for name, part in _items(_own(table, "parts")):
        yield from _nested(f"reward.parts.{name}", Kind.REWARD, table, part, PartTable)
    yield from _place("reward", Kind.REWARD, ComponentTable, table)


def _nested(
    path: str, kind: Kind, owner: Any, table: Any, model: type[ComponentTable] = ComponentTable
) -> Iterator[TablePlace]:
    """A table among the own keys of the component ``owner``."""
    if isinstance(table, Mapping) and isinstance(table.get("use"), str):
        validated = isinstance(owner, ComponentTable)
        yield TablePlace(path, kind, model, model.model_validate(table) if validated else table)


def _list(path: str, owner: Any) -> Iterator[TablePlace]:
    tables = _get(owner, "data")
    if isinstance(tables, list | tuple):
        for index, table in enumerate(tables):
            yield from _place(f"{path}.{index}", Kind.DATA_POLICY, DataPolicyTable, table)


def _get(owner: Any, key: str) -> Any:
    return owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key, None)


def _own(table: Any, key: str) -> Any:
    """A key of a component."""
    return _get(table.options if isinstance(table, ComponentTable) else table, key)


def _items(owner: Any) -> list[tuple[str, Any]]:
    return list(owner.items()) if isinstance(owner, Mapping) else []
