from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path

import pytest

from astraflow_core.types import Action, Observation, Prompt
from astraflow_testing.conformance.environment import Acts, EnvironmentConformance, guess
from astraflow_testing.conformance.prompt_source import Damaged, PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed

SCHEMA = "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, age INTEGER);"
TASK = {
    "question": "Who is over 30?",
    "query": "SELECT name FROM people WHERE age > 30",
    "schema": SCHEMA,
}
REPLIES = (
    "<sql>SELECT name FROM people</sql>",
    "<sql>SELECT max(age) FROM people</sql>",
    "<answer>SELECT name FROM people WHERE age > 30</answer>",
    "<answer>SELECT 1</answer>",
)


class TestSql(EnvironmentConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "environment",
            "sql",
            {"turns": 4},
            {"turns": 3, "actions": "tools"},
            {"wording": "terse"},
        )

    @pytest.fixture
    def tasks(self, tmp_path: Path) -> list[Prompt]:
        made = tmp_path / "made.sqlite"
        with sqlite3.connect(made) as connection:
            connection.executescript(SCHEMA)
            connection.executemany(
                "INSERT INTO people (name, age) VALUES (?, ?)", [("Ada", 31), ("Bo", 9)]
            )
        connection.close()
        of_file = {key: value for key, value in TASK.items() if key != "schema"}
        return [Prompt("one", TASK), Prompt("two", of_file | {"databases": [str(made)]})]

    @pytest.fixture
    def acts(self) -> Acts:
        def reply(observation: Observation, generator: random.Random) -> Action:
            if observation.tools:
                return guess(observation, generator)
            return Action(generator.choice(REPLIES))

        return reply


class TestDrawnQuestions(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "prompt_source",
            "sql_questions",
            {"size": 6},
            {"size": 4, "levels": ["filter"], "split": "held_out", "seed": 3},
        )


class TestQuestionsOfAFile(PromptSourceConformance):
    @pytest.fixture
    def component(self, tmp_path: Path) -> Subject:
        file = tmp_path / "mine.jsonl"
        file.write_text("\n\n".join(json.dumps(TASK | {"id": name}) for name in ("a", "b", "c")))
        return installed(
            "prompt_source", "sql_file", {"path": str(file)}, {"path": str(file), "limit": 2}
        )

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> list[Damaged]:
        mistakes = {
            "cut": json.dumps(TASK)[:-5],
            "array": "[1]",
            "no_query": json.dumps({"question": "?", "schema": SCHEMA}),
            "wrong_query": json.dumps(TASK | {"query": "SELECT nobody FROM people"}),
            "writing_query": json.dumps(TASK | {"query": "DELETE FROM people"}),
            "wrong_schema": json.dumps(TASK | {"schema": "CREATE people"}),
            "nowhere": json.dumps({"question": "?", "query": "SELECT 1"}),
            "both": json.dumps(TASK | {"databases": ["a.sqlite"]}),
            "no_file": json.dumps({"question": "?", "query": "SELECT 1", "databases": ["a.sqlite"]}),
            "ordered": json.dumps(TASK | {"ordered": "yes"}),
            "twice": json.dumps(TASK | {"id": "a"}),
        }  # fmt: skip
        made = []
        for name, line in mistakes.items():
            file = tmp_path / f"{name}.jsonl"
            file.write_text(json.dumps(TASK | {"id": "a"}) + "\n" + line + "\n")
            made.append(
                Damaged(installed("prompt_source", "sql_file", {"path": str(file)}), (f"{file}:2",))
            )
        missing = tmp_path / "none.jsonl"
        return [
            *made,
            Damaged(
                installed("prompt_source", "sql_file", {"path": str(missing)}), (str(missing),)
            ),
        ]
