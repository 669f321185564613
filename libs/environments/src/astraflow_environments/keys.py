"""The keys that every workflow has which plays an environment."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from astraflow_core.config.models import ConfigModel, Interpreter, PositiveInt, Seconds
from astraflow_core.config.or_none import OrNone


def _naming_an_environment(table: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(table.get("use"), str):
        raise ValueError("name an environment: use = …")
    return table


class EnvironmentKeys(ConfigModel):
    """What :class:`astraflow_environments.pool.EnvironmentPool` is configured by; the keys of a workflow derive from
    it."""

    environment: Annotated[dict[str, Any], AfterValidator(_naming_an_environment)] = Field(
        description="The environment, `use` and its keys: a table of its own, [workflow.environment]."
    )
    most_environments: PositiveInt = Field(
        default=64,
        description="Episodes of the environment that one RaaS runs concurrently; a blocking environment that is not "
        "'deterministic' has as many worker processes, started on demand.",
    )
    reset_deadline_s: Seconds = Field(default=60.0, description="Maximum time to start an episode.")
    step_deadline_s: Seconds = Field(default=30.0, description="Maximum duration of a step.")
    start_deadline_s: Seconds = Field(
        default=120.0, description="Maximum time to build the environment."
    )
    worker_processes: OrNone[PositiveInt] = Field(
        default=None,
        description="Worker processes that the episodes of an environment share which is 'blocking' and 'deterministic'; "
        "'none': one per processor, or with worker_python one per episode, as with as many as most_environments.",
    )
    worker_memory_mb: OrNone[PositiveInt] = Field(
        default=None,
        description="Address space of a worker process, in MiB; 'none': no bound.",
    )
    worker_python: Interpreter | None = Field(
        default=None,
        description="Interpreter of the worker processes, a path or 'env:NAME', with this package and the package "
        "of the environment; default: the interpreter of the RaaS.",
    )
