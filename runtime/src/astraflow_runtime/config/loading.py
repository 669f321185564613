"""From a TOML file to a run whose parts fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.config.load import LoadedConfig, read_config
from astraflow_core.errors import ConfigError
from astraflow_runtime.config.auto_transport import Joining, choose_transports
from astraflow_runtime.config.pairing import pairing_lines


def load_config(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    catalog: Catalog | None = None,
    *,
    workflow_given: bool = False,
    joining: Joining | None = None,
) -> LoadedConfig:
    """:func:`astraflow_core.config.load.read_config`, every transport chosen, and each component compared with those
    that it works with.

    ``joining``: of a process that joins a run. Raises :class:`ConfigError` with every problem.
    """
    read = read_config(source, overrides, catalog, workflow_given=workflow_given)
    loaded = choose_transports(read, joining)
    problems = pairing_lines(loaded.config, loaded.components)
    if problems:
        raise ConfigError(problems, loaded.label)
    return loaded
