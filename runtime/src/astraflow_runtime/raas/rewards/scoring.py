"""Scores trajectories: async rewards on the event loop, blocking ones in worker processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import catalog_of_run, component_context
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import RewardReport, TrajectoryView
from astraflow_runtime.raas.user_objects import UserObjects, asks_engines, name_of, score_function

Engines = Mapping[str, PolicyEngine]
NO_ENGINES: Engines = MappingProxyType({})


class Scorer(Protocol):
    """Scores a view. ``name`` is the name of the reward in errors."""

    name: str

    async def score(self, view: TrajectoryView, engines: Engines = NO_ENGINES) -> Any:
        """What the reward returned, not validated."""


class LoopScorer:
    """Awaits an async reward on the event loop; passes the engines if the reward takes them."""

    def __init__(self, name: str, reward: Any) -> None:
        self.name = name
        self._score = score_function(reward)
        self.asks_engines = asks_engines(reward)

    async def score(self, view: TrajectoryView, engines: Engines = NO_ENGINES) -> Any:
        """What the reward returned."""
        if self.asks_engines:
            return await self._score(view, engines=engines)
        return await self._score(view)


def build_reward(
    config: RunConfig,
    directory: Path,
    raas: str,
    token: str,
    given: UserObjects,
    catalog: Catalog | None = None,
) -> tuple[str, Any]:
    """Name and object of the run's reward: the user's own, or the component that the config names.
    ``catalog``: if there is one already.
    """
    if given.reward is not None:
        return name_of(given.reward), given.reward
    assert config.reward is not None
    context = component_context(config, directory, role="raas", policy="", name=raas, token=token)
    context = replace(context, directory=context.directory / "reward")
    catalog = catalog or catalog_of_run(config, directory)
    return config.reward.use, catalog.build(Kind.REWARD, config.reward, context)


def declares_blocking(config: RunConfig, catalog: Catalog) -> bool:
    """Whether the reward that the config names declares that it may block; it is not built for
    this.
    """
    assert config.reward is not None
    selected, _ = catalog.validate(Kind.REWARD, config.reward, "reward")
    return "blocking" in selected.component.capabilities


def as_number(value: Any) -> Any:
    """Numbers of numpy and the like as plain floats, also within a dict or a report, and one beyond their range as infinity;
    anything else as it is, such as an array of several numbers."""
    if isinstance(value, RewardReport):
        return RewardReport(as_number(value.reward), as_number(value.metrics))
    if isinstance(value, dict):
        return {str(key): as_number(each) for key, each in value.items()}
    if not hasattr(value, "__float__"):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except Exception:  # noqa: BLE001 - a class of the user may raise anything; its value is refused by its type
        return value


def validated(name: str, value: Any, policies: Iterable[str], prompt_id: str) -> dict[str, float]:
    """Policy → reward for the ``policies`` of a trajectory, from the result of a reward;
    :class:`WorkflowError` names what is wrong.
    """
    value = as_number(value.reward if isinstance(value, RewardReport) else value)
    if isinstance(value, dict):
        missing = sorted(set(policies) - value.keys())
        if missing:
            raise WorkflowError(
                f"reward {name!r} returned no reward for policy {', '.join(map(repr, missing))} on prompt {prompt_id!r}"
            )
        rewards = {policy: value[policy] for policy in policies}
    else:
        rewards = dict.fromkeys(policies, value)
    for policy, reward in rewards.items():
        if not isinstance(reward, float):
            raise WorkflowError(
                f"reward {name!r} returned {type(reward).__name__} for policy {policy!r} on prompt "
                f"{prompt_id!r}; expected a number or a dict of policy to number"
            )
        if not math.isfinite(reward):
            raise WorkflowError(
                f"reward {name!r} returned {reward} for policy {policy!r} on prompt {prompt_id!r}; "
                "a reward must be finite"
            )
    return rewards
