"""Whether the processes of a run have the same packages: each states its own when it registers, since hosts need share no folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from astraflow_core.catalog import Catalog
from astraflow_core.config.models import RunConfig
from astraflow_core.config.tables import AUTO, component_tables
from astraflow_core.errors import PluginError
from astraflow_wire.limits import ARTIFACT

ARTIFACT_FILE = "astraflow-artifact.json"
"""In an environment that `astraflow unpack` has made: ``{"digest": …}`` of the artifact."""
_ALWAYS = ("astraflow-core", "astraflow-wire", "astraflow-runtime")


def packages_of_run(config: RunConfig, catalog: Catalog) -> dict[str, str]:
    """Distribution → version of what the config names, as far as this interpreter has it; :data:`ARTIFACT` → digest, if
    it was made from an artifact."""
    packages = {name: metadata.version(name) for name in _ALWAYS}
    for place in component_tables(config):
        if place.table.use != AUTO:
            with suppress(PluginError):  # a host needs only what it runs
                selected = catalog.select(place.kind, place.table.use)
                if selected.distribution:
                    packages[selected.distribution] = selected.version
    if artifact := _own_artifact():
        packages[ARTIFACT] = artifact
    return packages


def package_skew(who: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Why ``who`` cannot take part in the run of this dataflow, with both versions of each package that differs; empty if it
    can. What only one of the two states is not compared."""
    differing = [
        f"{name} {version}, and the dataflow has {ours[name]}"
        for name, version in sorted(theirs.items())
        if name in ours and ours[name] != version
    ]
    if not differing:
        return ""
    return f"{who} has {'; '.join(differing)}: install the same versions on each host, or the same artifact of `astraflow pack`"


def _own_artifact() -> str:
    try:
        text = (Path(sys.prefix) / ARTIFACT_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    return str(json.loads(text)["digest"])
