"""What this distribution provides; strings only."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)
ASTRAFLOW_ENVIRONMENT = "astraflow_contrib_openenv.interpreter:environment"


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environment ``openenv``."""
    return [
        Component(
            name="openenv",
            target="astraflow_contrib_openenv.environment:OpenEnvEnvironment",
            config="astraflow_contrib_openenv.config:OpenEnvConfig",
            summary="an environment of an OpenEnv server, by URL or started by the RaaS",
            capabilities=frozenset({"tools"}),
        )
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt sources."""
    return [
        Component(
            name="openenv_seeds",
            target="astraflow_contrib_openenv.seeds:OpenEnvSeeds",
            config="astraflow_contrib_openenv.config:OpenEnvSeedsConfig",
            summary="seeds of resets as tasks, train and held out apart",
            capabilities=frozenset({"generated"}),
        ),
        Component(
            name="openenv_tasks",
            target="astraflow_contrib_openenv.task_api:OpenEnvTasks",
            config="astraflow_contrib_openenv.config:OpenEnvTasksConfig",
            summary="the tasks that an OpenEnv server lists by its Task API",
        ),
    ]
