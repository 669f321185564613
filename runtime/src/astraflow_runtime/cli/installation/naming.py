"""Where a run's file names a component."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.config.load import catalog_of
from astraflow_core.config.models import BalanceTable, LauncherTable
from astraflow_core.config.sources import apply_overrides, read_file
from astraflow_core.config.tables import AUTO, component_tables
from astraflow_core.errors import ConfigError, PluginError
from astraflow_core.installed.entry_points import RUNTIME
from astraflow_runtime.cli.installation.plugin_status import ComponentReport, component_reports


def in_run(name: str, file: str, overrides: Sequence[str]) -> list[ComponentReport]:
    """The reports on ``name`` for the run of a file, with ``chosen by``: the keys that name it. The
    file need not be valid otherwise. Raises :class:`ConfigError` if it cannot be read.
    """
    layers = read_file(Path(file))
    if problems := apply_overrides(layers, overrides):
        raise ConfigError(problems, file)
    defaults = {"balance": BalanceTable, "launcher": LauncherTable}
    raw = {name: {"use": table.model_fields["use"].default} for name, table in defaults.items()}
    raw |= layers.raw
    catalog = catalog_of(raw)
    told = []
    for standing in component_reports(catalog, name):
        chosen = list(_config_keys(standing, raw, catalog)) or [f"nothing: not named in {file}"]
        told.append(replace(standing, facts={"chosen_by": chosen} | standing.facts))
    return told


def _config_keys(standing: ComponentReport, raw: dict[str, Any], catalog: Catalog) -> Iterator[str]:
    _, _, thing = standing.subject.rpartition(" ")
    plugin = standing.facts.get("plugin")
    whole = standing.subject.startswith("plugin ")
    for place in component_tables(raw):
        use = place.table.get("use")
        if not isinstance(use, str) or (use == AUTO and place.path.endswith(".transport")):
            continue
        try:
            selected = catalog.select(place.kind, use)
        except PluginError as error:
            if use in (thing, thing.rpartition("/")[2], plugin):
                yield f"{place.path}, which fails: {error}"
            continue
        of_kind = whole or standing.subject in (thing, f"{place.kind} {thing}")
        if of_kind and (selected.plugin == plugin if whole else selected.qualified == thing):
            yield f"{place.path} = {use!r}"
    if whole and plugin == RUNTIME:
        yield "every run: it is the runtime's own"
    table = raw.get("plugins")
    enabled = table.get("enable") if isinstance(table, dict) else None
    if whole and isinstance(enabled, list) and plugin in enabled:
        yield "[plugins] enable"
