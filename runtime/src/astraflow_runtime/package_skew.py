"""Whether the processes of a run have the same packages, compared over the wire: hosts need share no folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from importlib import metadata
from pathlib import Path
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.config.models import RunConfig
from astraflow_core.config.tables import AUTO, component_tables
from astraflow_core.errors import Refused, VersionSkew

PATH = "/v1/packages"
ASK_S = 20.0
"""How much longer than for the registration a RaaS waits for the dataflow (seconds)."""
ARTIFACT_FILE = "astraflow-artifact.json"
"""In an environment that `astraflow unpack` has made: ``{"digest": …}`` of the artifact."""
_ALWAYS = ("astraflow-core", "astraflow-wire", "astraflow-runtime")


def packages_of_run(config: RunConfig, catalog: Catalog) -> dict[str, Any]:
    """``distributions``: name → version of what the config names, as this interpreter has it; ``artifact``: the digest of the
    artifact that this environment was made from, or nothing."""
    distributions = {name: metadata.version(name) for name in _ALWAYS}
    for place in component_tables(config):
        if place.table.use != AUTO:
            selected = catalog.select(place.kind, place.table.use)
            if selected.distribution:
                distributions[selected.distribution] = selected.version
    return {"distributions": distributions, "artifact": own_artifact()}


def own_artifact() -> str:
    """The digest of the artifact that this environment was made from; empty if it was not made from one."""
    try:
        text = (Path(sys.prefix) / ARTIFACT_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    return str(json.loads(text)["digest"])


@contextmanager
def if_stated() -> Iterator[None]:
    """Go on if who stands in for a dataflow, such as an adapter of another protocol, does not state packages (404)."""
    try:
        yield
    except Refused as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise


def check_packages(theirs: Mapping[str, Any], who: str) -> None:
    """Raise :class:`VersionSkew`, with both versions of each package that differs, if ``who`` (this process) has others than
    the dataflow. What is not installed here is not compared: a host needs only what it runs."""
    differing = []
    for name, version in sorted(dict(theirs["distributions"]).items()):
        try:
            own = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if own != version:
            differing.append(f"{name} {own}, and the dataflow has {version}")
    if differing:
        raise VersionSkew(
            f"{who} has {'; '.join(differing)}: install the same versions on each host, or the same artifact of `astraflow pack`"
        )
    artifact, own = str(theirs["artifact"]), own_artifact()
    if artifact and own and artifact != own:
        raise VersionSkew(
            f"{who} was installed from artifact {own}, and the dataflow from {artifact}: unpack the same artifact on each host"
        )
