"""What this distribution provides; strings only."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environment ``sql``."""
    return [
        Component(
            name="sql",
            target="astraflow_contrib_sql.environment:SqlEnvironment",
            config="astraflow_contrib_sql.config:SqlConfig",
            summary="a question about a database, answered by a query that is executed on several",
            capabilities=frozenset({"blocking", "deterministic", "tools"}),
        )
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt sources."""
    return [
        Component(
            name="sql_questions",
            target="astraflow_contrib_sql.sources:DrawnQuestions",
            config="astraflow_contrib_sql.config:QuestionsConfig",
            summary="schemas and questions of graded difficulty, drawn from a seed",
            capabilities=frozenset({"generated"}),
        ),
        Component(
            name="sql_file",
            target="astraflow_contrib_sql.sources:QuestionsOfAFile",
            config="astraflow_contrib_sql.config:QuestionFileConfig",
            summary="a file of questions with their queries and databases",
        ),
    ]
