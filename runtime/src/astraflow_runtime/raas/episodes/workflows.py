"""The workflow and the reward of a run, ready to be used."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import component_context
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import PreflightError, UserError
from astraflow_engine_host.spec import ChildSpec
from astraflow_runtime.raas.rewards.pool import RewardPool
from astraflow_runtime.raas.rewards.scoring import (
    LoopScorer,
    Scorer,
    build_reward,
    declares_blocking,
)
from astraflow_runtime.raas.user_objects import (
    UserObjects,
    as_workflow,
    asks_engines,
    checked_workflow,
    is_async,
    name_of,
)

log = logging.getLogger("astraflow.raas")


@dataclass(frozen=True, slots=True)
class NamedWorkflow:
    """A workflow and its name in errors."""

    name: str
    workflow: Any


def build_workflow(
    config: RunConfig, catalog: Catalog, directory: Path, raas: str, token: str, given: UserObjects
) -> NamedWorkflow:
    """The user's own workflow, or the component that the config names."""
    if given.workflow is not None:
        return NamedWorkflow(name_of(given.workflow), as_workflow(given.workflow))
    if config.workflow is None:
        raise PreflightError(
            "the run has no workflow: add a [workflow] table, or pass an object to astraflow_runtime.run()"
        )
    context = component_context(config, directory, role="raas", policy="", name=raas, token=token)
    context = replace(context, directory=context.directory / "workflow")
    name = config.workflow.use
    built = catalog.build(Kind.WORKFLOW, config.workflow, context)
    return NamedWorkflow(name, checked_workflow(name, built))


def build_scorer(
    config: RunConfig, catalog: Catalog, directory: Path, raas: str, token: str, given: UserObjects
) -> Scorer | None:
    """The run's reward: on the event loop if its score is async, in worker processes if it may block
    (declared, or not async); ``None`` if the workflow has to reward."""
    if given.reward is None:
        if config.reward is None:
            return None
        if declares_blocking(config, catalog):
            return _pool(config.reward.use, config, directory, raas, token)
    name, reward = build_reward(config, directory, raas, token, given)
    if is_async(reward):
        return LoopScorer(name, reward)
    check_engines_asked(name, reward)
    workers = config.raas.reward_workers
    log.info("reward %r is not async: it runs in %d worker processes", name, workers)
    return _pool(name, config, directory, raas, token)


def check_engines_asked(name: str, reward: Any) -> None:
    """Reject a reward that asks for engines but runs in worker processes."""
    if asks_engines(reward):
        raise UserError(
            f"the reward {name!r} uses the engines, which are only available on the event loop: make its score "
            "async"
        )


def _pool(name: str, config: RunConfig, directory: Path, raas: str, token: str) -> RewardPool:
    spec = ChildSpec(
        config=config.model_dump_json(), directory=str(directory), raas=raas, parent=os.getpid()
    )
    return RewardPool(
        name,
        spec,
        directory / "state" / raas / "reward.json",
        token,
        config.raas.reward_workers,
        config.raas.reward_deadline_s,
        config.run.start_deadline_s,
    )
