"""The keys of the environment and of its prompt sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_environments.tasks import DrawnTaskKeys

Level = Literal["filter", "aggregate", "group", "join", "nested", "terse"]


def _with_a_place(template: str) -> str:
    if template.count("{}") != 1:
        raise ValueError("write {} once, in the place of the reply")
    return template


class SqlConfig(ConfigModel):
    """``use = "sql"``"""

    turns: PositiveInt = Field(
        1,
        description="Maximum turns per episode; with more than 1, queries can be tried before one is the answer.",
    )
    actions: Literal["text", "tools"] = Field(
        "text", description="Queries are tagged in the reply, or arguments of tools."
    )
    wording: Literal["plain", "terse"] = Field(
        "plain", description="Instructions, schema and question; or the question alone."
    )
    completes: Annotated[str, AfterValidator(_with_a_place)] = Field(
        "{}",
        description="Query that the reply completes in an episode of one turn, such as 'SELECT {} FROM t'.",
    )
    databases: PositiveInt = Field(
        3,
        description="Databases with different rows on which the answer must return the same as the right query.",
    )
    rows: Annotated[int, Field(ge=2, le=10_000)] = Field(
        12, description="Rows of a table in databases that are filled by the environment."
    )
    executes: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Reward of an answer that executes but returns another result."
    )
    columns: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Reward of an answer that returns another result, times the share of its columns that are right.",
    )
    most_steps: PositiveInt = Field(
        1_000_000, description="Maximum instructions of SQLite's virtual machine per query."
    )
    most_rows: PositiveInt = Field(1000, description="Maximum rows of a query's result.")
    shown_rows: PositiveInt = Field(10, description="Rows of a result that are shown.")

    @model_validator(mode="after")
    def _refuse_more_than_one(self) -> SqlConfig:
        if self.executes + self.columns >= 1:
            raise ValueError(
                "executes and columns add up to 1 or more, as much as the right answer earns"
            )
        return self


class QuestionsConfig(DrawnTaskKeys):
    """``use = "sql_questions"``"""

    levels: Annotated[tuple[Level, ...], Field(min_length=1)] = Field(
        ("filter", "aggregate", "group", "join", "nested"),
        description="Kinds of questions, from easy to hard, each as often as the others.",
    )
    listed: Annotated[int, Field(ge=1, le=6)] = Field(
        2, description="Columns that a question of the level terse asks for, of six."
    )


class QuestionFileConfig(ConfigModel):
    """``use = "sql_file"``"""

    path: Path = Field(description="File, one JSON object per line.")
    limit: OrNone[PositiveInt] = Field(
        None, description="Only the first questions, as many as this; 'none': all."
    )
