"""The environment that a table names: selected and imported once, built as often as episodes run at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from astraflow_core.catalog import Catalog, Selected
from astraflow_core.component import Kind
from astraflow_core.config.models import ComponentTable
from astraflow_core.errors import EnvironmentFailed, UserError
from astraflow_core.installed.provenance import check_version, lock_of
from astraflow_core.types import ComponentContext
from astraflow_engine_host.failures import describe

WHERE = "workflow.environment"


@dataclass(frozen=True, slots=True)
class ChosenEnvironment:
    """A component and its validated keys."""

    selected: Selected
    config: BaseModel | None
    context: ComponentContext

    @classmethod
    def of(cls, table: Mapping[str, Any], context: ComponentContext) -> ChosenEnvironment:
        """What ``table`` names in the run of ``context``; raises :class:`UserError` with the reason if it is invalid."""
        directory = context.run.directory
        catalog = Catalog.discover().locked(lock_of(directory))
        model = ComponentTable.model_validate(dict(table))
        selected, config = catalog.validate(Kind.ENVIRONMENT, model, WHERE)
        check_version(selected.distribution, selected.version, directory)
        return cls(selected, config, context)

    @property
    def described(self) -> str:
        """In messages: its name and, if that is another, its class."""
        name, target = self.selected.component.name, self.selected.component.target
        return repr(name) if name == target else f"{name!r} ({target})"

    @property
    def named_metrics(self) -> frozenset[str]:
        """What its key ``metrics`` names, if it has one."""
        named = getattr(self.config, "metrics", ())
        return frozenset(named) if isinstance(named, tuple | list) else frozenset()

    @property
    def capabilities(self) -> frozenset[str]:
        """What it declares."""
        return self.selected.component.capabilities

    def build(self, seat: int) -> tuple[Any, tuple[str, ...]]:
        """An instance with its own folder, and its roles."""
        folder = self.context.directory / f"environment-{seat}"
        built = self.selected.build(self.config, replace(self.context, directory=folder))
        return built, tuple(built.roles) if "multi_role" in self.capabilities else ()


def failure_of(error: Exception) -> EnvironmentFailed | UserError:
    """What a call of an environment raised, as the caller sees it: a mistake of the user as it is, since no
    attempt can avoid that."""
    if isinstance(error, UserError | EnvironmentFailed):
        return error
    if isinstance(error, MemoryError):
        return EnvironmentFailed("memory", "has no memory left ([workflow] worker_memory_mb)")
    return EnvironmentFailed("error", f"raised {describe(error)}")
