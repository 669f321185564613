"""The environment ``sql``."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

from astraflow_contrib_sql.comparing import right_columns, same, shown
from astraflow_contrib_sql.config import SqlConfig
from astraflow_contrib_sql.filling import filled, opened, schema_of
from astraflow_contrib_sql.reading import QueryFailed, QueryResult, ReadOnlyDatabase
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt
from astraflow_environments.actions import argument, first_tagged, said, tool

_SQL = {"type": "string", "description": "One SQLite query."}
_ANSWER = tool("answer", "Answer the question with a query; this ends the task.", sql=_SQL)
_TRY = tool("query", "Execute a query and see its result.", sql=_SQL)
_DRAWS = 6
"""Databases that are drawn until the right result is not empty in one."""
_TEXT = """\
Answer the question with one SQLite query. It is executed on several databases with this schema.

{schema}

Question: {question}

{how}"""
_HOW = {
    ("text", True): "Reply with <answer>QUERY</answer>.",
    (
        "text",
        False,
    ): "You have {turns} turns. Reply with <sql>QUERY</sql> to see the result of a query, or with "
    "<answer>QUERY</answer> to answer.",
    ("tools", True): "Call the tool answer.",
    (
        "tools",
        False,
    ): "You have {turns} turns. Call query to see the result of a query, or answer to answer.",
}
_FENCED = re.compile(r"```(?:sql|sqlite)?\s*\n(.*?)```", re.DOTALL | re.IGNORECASE)


class SqlEnvironment:
    """Asks the question of a prompt, shows results of queries if there are several turns, and executes both the answer and
    the right query on databases with different rows."""

    def __init__(self, config: SqlConfig, context: ComponentContext) -> None:
        self._config = config
        self._task: Prompt = Prompt("")
        self._seed = self._left = 0
        self._tried: list[str] = []
        self._databases: dict[int, tuple[ReadOnlyDatabase, QueryResult]] = {}
        """Those of the task and its seed, which the episodes of a group share."""

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Ask the question of a prompt. :class:`PromptError` if it has none, or its query or databases fail."""
        missing = [key for key in ("question", "query") if not isinstance(task.data.get(key), str)]
        if missing or not ("schema" in task.data or "databases" in task.data):
            raise PromptError(
                f"prompt {task.id!r} is not a task of the environment 'sql': it needs question, query, and schema or databases; "
                "the prompt sources 'sql_questions' and 'sql_file' make them"
            )
        if (task, seed) != (self._task, self._seed):
            self.close()
        self._task, self._seed, self._left, self._tried = task, seed, self._config.turns, []
        return self._observation(({"role": "user", "content": self._asked()},))

    def step(self, action: Action) -> Observation:
        """Execute a query, as an answer or to show its result."""
        self._left -= 1
        try:
            kind, query = self._query(action)
        except ValueError as error:
            return self._respond(action, str(error))
        last = self._left == 0
        if kind == "answer" or (last and self._config.turns == 1):
            return self._judged(query)
        try:
            text = shown(self._database(0)[0].run(query), self._config.shown_rows)
        except QueryFailed as error:
            text = f"Error: {error}"
        return self._respond(action, text)

    def close(self) -> None:
        """Forget the databases."""
        for database, _ in self._databases.values():
            database.close()
        self._databases = {}

    def _asked(self) -> str:
        data, config = self._task.data, self._config
        if config.wording == "terse":
            return str(data["question"])
        if "schema" in data:
            schema = data["schema"]
        else:
            connection = self._opened(data["databases"][0])
            schema = schema_of(connection)
            connection.close()
        how = _HOW[config.actions, config.turns == 1].format(turns=config.turns)
        return _TEXT.format(schema=schema, question=data["question"], how=how)

    def _query(self, action: Action) -> tuple[str, str]:
        """``("answer" or "query", SQL)``; raises :class:`ValueError` with what the reply lacks."""
        once = self._config.turns == 1
        if self._config.actions == "tools":
            return argument(
                action, {"answer": "sql"} if once else {"answer": "sql", "query": "sql"}
            )
        tagged = first_tagged(action.text, "answer", "sql")
        if tagged is not None:
            name, query = tagged
        elif once:
            fenced = _FENCED.search(action.text)
            name, query = "answer", (fenced[1] if fenced else action.text).strip()
        else:
            raise ValueError("Reply with <sql>QUERY</sql> or <answer>QUERY</answer>.")
        name = "answer" if name == "answer" else "query"
        return name, self._config.completes.replace("{}", query) if once else query

    def _judged(self, query: str) -> Observation:
        right, runs, columns = True, False, 0.0
        ordered = bool(self._task.data.get("ordered"))
        for number in range(len(self._task.data.get("databases", ())) or self._config.databases):
            database, expected = self._database(number)
            try:
                found = database.run(query)
            except QueryFailed:
                right = False
                break
            runs = True
            right = same(found, expected, ordered)
            if not right:
                columns = right_columns(found, expected, ordered)
                break
        wrong = self._config.executes * runs + self._config.columns * columns
        reward = 1.0 if right else wrong
        metrics = {
            "right": float(right),
            "executed": float(runs),
            "queries": float(len(self._tried)),
        }
        return self._observation((), reward, Outcome.FINISHED, metrics)

    def _database(self, number: int) -> tuple[ReadOnlyDatabase, QueryResult]:
        """A database and what the right query gives on it."""
        if number not in self._databases:
            self._databases[number] = self._made(number)
        return self._databases[number]

    def _made(self, number: int) -> tuple[ReadOnlyDatabase, QueryResult]:
        data = self._task.data
        if "databases" in data:
            return self._answered(self._opened(data["databases"][number]))
        for draw in range(_DRAWS):
            seed = f"{self._seed} {number} {draw}"
            try:
                connection = filled(data["schema"], data.get("pools", {}), seed, self._config.rows)
            except (sqlite3.Error, sqlite3.Warning, TypeError) as error:
                raise PromptError(f"prompt {self._task.id!r}: its schema fails: {error}") from error
            database, result = self._answered(connection)
            if result.rows or draw == _DRAWS - 1:
                return database, result
            database.close()
        raise AssertionError("the last draw is taken")

    def _answered(self, connection: sqlite3.Connection) -> tuple[ReadOnlyDatabase, QueryResult]:
        database = ReadOnlyDatabase(connection, self._config.most_steps, self._config.most_rows)
        try:
            return database, database.run(self._task.data["query"])
        except QueryFailed as error:
            database.close()
            raise PromptError(f"prompt {self._task.id!r}: its query fails: {error}") from error

    def _opened(self, path: Any) -> sqlite3.Connection:
        try:
            return opened(Path(path))
        except (sqlite3.Error, OSError) as error:
            raise PromptError(f"prompt {self._task.id!r}: database {path}: {error}") from error

    def _respond(self, action: Action, text: str) -> Observation:
        self._tried.append(action.text if not action.calls else repr(action.calls))
        if self._left == 0:
            metrics = {"right": 0.0, "executed": 0.0, "queries": float(len(self._tried))}
            return self._observation((), 0.0, Outcome.TRUNCATED, metrics)
        left = f"\n{self._left} turn{'s' if self._left > 1 else ''} left."
        return self._observation(said(action, text + left))

    def _observation(
        self,
        messages: Any,
        reward: float = 0.0,
        outcome: Outcome | None = None,
        metrics: dict[str, float] | None = None,
    ) -> Observation:
        tools: tuple[dict[str, Any], ...] = ()
        if self._config.actions == "tools":
            tools = (_ANSWER,) if self._config.turns == 1 else (_TRY, _ANSWER)
        state = json.dumps([self._tried, self._left])
        return Observation(messages, reward, outcome, tools, state=state, metrics=metrics or {})
