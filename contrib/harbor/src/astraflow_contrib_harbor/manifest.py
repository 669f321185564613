"""What this distribution provides; strings only."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environment ``harbor``."""
    return [
        Component(
            name="harbor",
            target="astraflow_contrib_harbor.environment:HarborEnvironment",
            config="astraflow_contrib_harbor.config:HarborConfig",
            summary="a task folder of Harbor: a shell in a sandbox, judged by the task's tests",
            capabilities=frozenset({"tools"}),
        )
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt source ``harbor_tasks``."""
    return [
        Component(
            name="harbor_tasks",
            target="astraflow_contrib_harbor.source:HarborTasks",
            config="astraflow_contrib_harbor.config:HarborTasksConfig",
            summary="a folder of task folders in the format of Harbor",
        )
    ]
