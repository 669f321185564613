"""Builds the components that are part of another component."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.models import ComponentTable
from astraflow_core.installed.provenance import lock_of
from astraflow_core.types import ComponentContext


def build_component(kind: Kind | str, table: Mapping[str, Any], context: ComponentContext) -> Any:
    """The component that ``table`` names, with its other keys. A name means here what it means elsewhere in the run
    of ``context``. :class:`ConfigError` if a key is wrong, :class:`PluginError` if the component does not exist."""
    catalog = Catalog.discover().locked(lock_of(context.run.directory))
    return catalog.build(kind, ComponentTable.model_validate(dict(table)), context)
