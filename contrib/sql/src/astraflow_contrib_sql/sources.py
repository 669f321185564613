"""Prompt sources: questions that are drawn, and those of a file."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from astraflow_contrib_sql.config import QuestionFileConfig, QuestionsConfig
from astraflow_contrib_sql.filling import filled, literals, opened
from astraflow_contrib_sql.questions import Question, drawn_question
from astraflow_contrib_sql.reading import QueryFailed, ReadOnlyDatabase
from astraflow_core.types import ComponentContext, Prompt
from astraflow_environments.tasks import PromptList, Task, drawn, id_of, read_tasks, text_of

_ROWS = 12
_CHECKED_ON = 3
_STEPS = 10_000_000


class DrawnQuestions(PromptList):
    """Questions whose right query gives rows on most databases, and not always the same. ``data`` has ``question``, ``schema``
    (statements), ``pools`` (``table.column`` → values), ``query``, ``ordered`` and ``level``."""

    def __init__(self, config: QuestionsConfig, context: ComponentContext) -> None:
        def draw(generator: random.Random) -> Task | None:
            level = generator.choice(config.levels)
            question = drawn_question(generator, level, config.listed)
            if question is None:
                return None
            text = f"{question.schema.statements}\n{question.text}"
            return text, lambda: _task(question, level)

        super().__init__(drawn("sql_questions", config, draw))


class QuestionsOfAFile(PromptList):
    """The questions of a user: each line has ``question`` and ``query``, and either ``schema``, statements that make tables,
    or ``databases``, a file or a list of files next to the questions. ``ordered``: whether the order of rows counts; by
    default if the query says ORDER BY."""

    def __init__(self, config: QuestionFileConfig, context: ComponentContext) -> None:
        folder = config.path.expanduser().absolute().parent

        def prompt_of(data: dict[str, Any], number: int) -> Prompt:
            return _of_line(data, number, folder)

        super().__init__(read_tasks("sql_file", config.path, prompt_of, config.limit))


def _task(question: Question, level: str) -> dict[str, Any] | None:
    schema, pools = question.schema.statements, question.schema.pools
    results = []
    for number in range(_CHECKED_ON):
        connection = filled(schema, pools, f"check {number}", _ROWS)
        with closing(ReadOnlyDatabase(connection, _STEPS, _STEPS)) as database:
            results.append(database.run(question.query).rows)
    nothing = sum(not rows or rows == ((0,),) or rows == ((None,),) for rows in results)
    if nothing > 1 or len(set(results)) == 1:
        return None
    return {
        "question": question.text,
        "schema": schema,
        "pools": pools,
        "query": question.query,
        "ordered": question.ordered,
        "level": level,
    }


def _of_line(data: dict[str, Any], number: int, folder: Path) -> Prompt:
    query = text_of(data, "query")
    made: dict[str, Any] = {"question": text_of(data, "question"), "query": query}
    ordered = data.get("ordered", "order by" in query.lower())
    if not isinstance(ordered, bool):
        raise ValueError(f"'ordered' must be true or false, got {ordered!r:.40}")
    made["ordered"] = ordered
    if ("schema" in data) == ("databases" in data):
        raise ValueError("needs either 'schema' or 'databases'")
    if "schema" in data:
        made |= {"schema": text_of(data, "schema"), "pools": {"": literals(query)}}
    else:
        made["databases"] = [str(path) for path in _files(data["databases"], folder)]
    for connection in _connections(made):
        with closing(ReadOnlyDatabase(connection, _STEPS, _STEPS)) as database:
            try:
                database.run(query)
            except QueryFailed as error:
                raise ValueError(f"its query fails: {error}") from error
    return Prompt(id_of(data, number), made)


def _files(given: Any, folder: Path) -> Iterator[Path]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise ValueError(f"'databases' must be a file or a list of files, got {given!r:.60}")
    for name in names:
        path = folder / name
        if not path.is_file():
            raise ValueError(f"there is no database {path}")
        yield path


def _connections(made: dict[str, Any]) -> Iterator[sqlite3.Connection]:
    try:
        if "schema" in made:
            yield filled(made["schema"], made["pools"], "check", _ROWS)
        else:
            for path in made["databases"]:
                yield opened(Path(path))
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise ValueError(
            f"its {'schema' if 'schema' in made else 'database'} fails: {error}"
        ) from error
