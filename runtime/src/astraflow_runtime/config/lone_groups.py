"""Whether a run's algorithms can learn from groups of one trajectory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from astraflow_core.catalog import Catalog
from astraflow_core.config.load import LoadedConfig
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import PluginError
from astraflow_runtime.config.pairing import Components

_MORE_SEQUENCES = frozenset({"multi_turn", "multi_policy"})
"""Capabilities of a workflow whose trajectories may have several sequences of a policy."""


def lone_group_problems(loaded: LoadedConfig) -> list[str]:
    """Each algorithm that would learn nothing, with its dotted path and the next step."""
    lines = list(_warnings(loaded.config, loaded.components, sure=True))
    if lines:
        others = ", ".join(_content_with_one(loaded.catalog))
        remedy = f", or use an algorithm that does not need groups ({others})" if others else ""
        lines = [f"{line}; set run.group_size to 2 or more{remedy}" for line in lines]
    return lines


def lone_group_notes(loaded: LoadedConfig) -> list[str]:
    """Each algorithm that learns only if the workflow gives several sequences of a policy in one trajectory."""
    unless = "unless the workflow returns several sequences of the policy per trajectory"
    return [f"{line}, {unless}" for line in _warnings(loaded.config, loaded.components, sure=False)]


def _warnings(config: RunConfig, components: Components, *, sure: bool) -> Iterator[str]:
    if config.run.group_size > 1:
        return
    several = _may_have_several(components)
    for name, policy in config.policies.items():
        compares = _compares(components[f"policies.{name}.algorithm"][1])
        if compares and sure is not (several and compares == "sequences"):
            yield (
                f"policies.{name}.algorithm: {policy.algorithm.use!r} with these keys compares the rewards of a group, "
                "and with run.group_size = 1 every advantage is 0"
            )


def _may_have_several(components: Components) -> bool:
    """True also for a workflow without a manifest, since it may return anything."""
    if "workflow" not in components:
        return True
    selected = components["workflow"][0]
    return not selected.packaged or bool(selected.component.capabilities & _MORE_SEQUENCES)


def _compares(keys: Any) -> str:
    return str(getattr(keys, "compares", ""))


def _content_with_one(catalog: Catalog) -> Iterator[str]:
    """Algorithms that declare that they compare nothing with their default keys."""
    for selected in catalog.components("algorithm"):
        try:
            model = selected.config_model()
            keys = None if model is None else model()
        except (PluginError, ValidationError):  # cannot be imported here, or has no defaults
            continue
        if hasattr(keys, "compares") and not _compares(keys):
            yield selected.component.name
