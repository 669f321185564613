"""Answers are judged by what they give; queries read and end."""

from __future__ import annotations

import itertools
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_sql.config import QuestionsConfig, SqlConfig
from astraflow_contrib_sql.environment import SqlEnvironment
from astraflow_contrib_sql.filling import filled
from astraflow_contrib_sql.reading import QueryFailed, ReadOnlyDatabase
from astraflow_contrib_sql.sources import DrawnQuestions
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, FunctionCall, Observation, Outcome, Prompt
from astraflow_testing.conformance.subject import context

SCHEMA = """
CREATE TABLE town (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, age INTEGER, town_id INTEGER REFERENCES town(id));
"""
POOLS = {
    "people.name": ["Ada", "Bo", "Cy"],
    "people.age": {"range": [10, 60, 1]},
    "town.name": ["Arden", "Brill"],
}
LEVELS = ("filter", "aggregate", "group", "join", "nested", "terse")


@pytest.fixture
def play(tmp_path: Path) -> Any:
    """``play(data, *replies, **keys)``: the observations of an episode."""

    def played(data: dict[str, Any], *replies: str | Action, **keys: Any) -> list[Observation]:
        environment = SqlEnvironment(SqlConfig(**keys), context("raas", tmp_path))
        seen = [environment.reset(Prompt("p", {"schema": SCHEMA, "pools": POOLS, **data}), 5)]
        for reply in replies:
            assert seen[-1].outcome is None
            seen.append(environment.step(reply if isinstance(reply, Action) else Action(reply)))
        environment.close()
        return seen

    return played


ASKED = {"question": "Who is over 30?", "query": "SELECT name FROM people WHERE age > 30"}


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("SELECT name FROM people WHERE age > 30", 1),
        ("SELECT p.name AS who FROM people p WHERE NOT p.age <= 30 ORDER BY age", 1),
        ("SELECT name FROM people WHERE age > 30;", 1),
        ("SELECT DISTINCT name FROM people WHERE age > 30", 0.25),
        ("SELECT name, age FROM people WHERE age > 30", 0.25),
        ("SELECT name FROM people WHERE age > 29", 0.25),
        ("SELECT name FROM people WHERE age > 30 AND id < 11", 0.25),
        ("SELECT name FROM persons WHERE age > 30", 0),
        ("DELETE FROM people", 0),
        ("", 0),
    ],
)
def test_an_answer_is_judged_by_what_it_gives(play: Any, answer: str, reward: float) -> None:
    # More databases than usual: in these, each of the wrong queries gives something else somewhere.
    seen = play(ASKED, f"Well. <answer>{answer}</answer>", executes=0.25, databases=12, rows=40)
    assert (seen[-1].reward, seen[-1].outcome) == (reward, Outcome.FINISHED)
    assert seen[-1].metrics["right"] == (reward == 1)


def test_order_counts_if_it_is_asked_for(play: Any) -> None:
    query = "SELECT name FROM people ORDER BY age, id"
    for ordered, reward in ((True, 0), (False, 1)):
        data = {"question": "?", "query": query, "ordered": ordered}
        assert play(data, query + " DESC", databases=1)[-1].reward == reward or ordered
        assert play(data, "SELECT name FROM people ORDER BY name")[-1].reward == reward
        assert play(data, query)[-1].reward == 1


def test_a_result_that_is_guessed_is_wrong_on_other_databases(play: Any) -> None:
    data = {"question": "How many?", "query": "SELECT count(*) FROM people WHERE age > 30"}
    first = play(data, f"<sql>{data['query']}</sql>", turns=2)[-1].messages[0]["content"]
    count = int(first.splitlines()[1])
    assert play(data, f"SELECT {count}", databases=1)[-1].reward == 1
    assert play(data, f"SELECT {count}", databases=6)[-1].reward == 0


def test_several_turns_show_results_and_then_take_an_answer(play: Any) -> None:
    replies = [
        "Hm.",
        "<sql>SELECT nobody FROM people</sql>",
        "<sql>SELECT id, name FROM town</sql>",
    ]
    seen = play(ASKED, *replies, f"<answer>{ASKED['query']}</answer>", turns=4, shown_rows=2)
    told = [one.messages[0]["content"] for one in seen[:-1]]
    assert "You have 4 turns" in told[0] and "CREATE TABLE people" in told[0]
    assert told[1].startswith("Reply with <sql>QUERY</sql>") and "3 turns left" in told[1]
    assert told[2].startswith("Error: no such column: nobody")
    lines = told[3].splitlines()
    assert lines[0] == "id | name" and lines[1].startswith("1 | ") and "not shown" in lines[3]
    assert seen[-1].reward == 1 and seen[-1].metrics["queries"] == 3
    cut = play(ASKED, *replies, "<sql>SELECT 1</sql>", turns=4)
    assert (cut[-1].outcome, cut[-1].reward) == (Outcome.TRUNCATED, 0)


def test_tools_query_and_answer(play: Any) -> None:
    def call(name: str, **arguments: Any) -> Action:
        return Action("", (FunctionCall("c", name, arguments),))

    seen = play(
        ASKED, call("query", sql="SELECT 7"), call("query", sql=7), call("answer", sql=ASKED["query"]),
        turns=3, actions="tools",
    )  # fmt: skip
    assert [tool["function"]["name"] for tool in seen[0].tools] == ["query", "answer"]
    assert seen[1].messages[0]["content"].startswith("7\n7\n(1 rows)")
    assert "needs an argument 'sql'" in seen[2].messages[0]["content"]
    assert seen[-1].reward == 1


def test_a_terse_reply_completes_a_query(play: Any) -> None:
    data = {"question": "+ab", "query": "SELECT age+id FROM people"}
    seen = play(data, "id+age", wording="terse", completes="SELECT {} FROM people")
    assert seen[0].messages[0]["content"] == "+ab" and seen[-1].reward == 1
    with pytest.raises(ValueError, match="once, in the place of the reply"):
        SqlConfig(completes="SELECT 1")


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("SELECT name, age FROM people", 1),
        ("SELECT name, id FROM people", 0.1 + 0.6 / 2),
        ("SELECT name FROM people", 0.1 + 0.6 / 2),
        ("SELECT age, name FROM people", 0.1),
        ("SELECT name, age, id FROM people", 0.1 + 0.6 * 2 / 3),
        ("SELECT name, years FROM people", 0),
    ],
)
def test_right_columns_of_a_wrong_answer_can_count(play: Any, answer: str, reward: float) -> None:
    data = {"question": "?", "query": "SELECT name, age FROM people"}
    assert play(data, answer, executes=0.1, columns=0.6)[-1].reward == pytest.approx(reward)
    with pytest.raises(ValueError, match="executes and columns add up to 1 or more"):
        SqlConfig(executes=0.4, columns=0.6)


@pytest.mark.parametrize("level", LEVELS)
def test_each_question_is_answered_by_its_query_and_by_no_other_of_its_level(
    play: Any, level: str, tmp_path: Path
) -> None:
    source = DrawnQuestions(QuestionsConfig(levels=(level,), size=6), context("dataflow", tmp_path))
    tasks = [dict(source[index].data) for index in range(len(source))]
    wrong = 0
    for task, other in itertools.pairwise(tasks):
        assert play(task, task["query"])[-1].reward == 1, task
        assert (
            level == "terse"
            or "Question: " + task["question"] in play(task)[0].messages[0]["content"]
        )
        wrong += play(task, other["query"])[-1].reward == 1
    assert wrong <= 1  # two questions may mean the same


def test_no_seed_mixes_the_splits(tmp_path: Path) -> None:
    def asked(**keys: Any) -> set[str]:
        source = DrawnQuestions(QuestionsConfig(**keys), context("dataflow", tmp_path))
        return {
            source[index].data["schema"] + source[index].data["question"]
            for index in range(len(source))
        }

    terse = asked(levels=("terse",), size=24, seed=1)
    assert not terse & asked(levels=("terse",), size=6, seed=2, split="held_out")
    with pytest.raises(
        PromptError, match=r"split 'train' has \d+ tasks with these keys, fewer than size = 200"
    ):
        asked(levels=("terse",), size=200)
    three = [asked(levels=("terse",), listed=3, size=95, split="train")]
    three.append(asked(levels=("terse",), listed=3, size=25, split="held_out"))
    asked_for = {question.rpartition("\n")[2][-3:] for question in set.union(*three)}
    assert asked_for == {"".join(three) for three in itertools.permutations("abcdef", 3)}


@pytest.fixture
def database() -> Any:
    made = ReadOnlyDatabase(filled(SCHEMA, POOLS, "s", 12), 20_000, 50)
    yield made
    made.close()


ENDLESS = "WITH RECURSIVE c(x, y) AS (SELECT 1, printf('%*d', 9000, 1) UNION SELECT x + 1, printf('%*d', 9000, x) FROM c)"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("INSERT INTO town (name) VALUES ('x')", "not authorized"),
        ("UPDATE people SET age = 1", "not authorized"),
        ("DROP TABLE people", "not authorized"),
        ("CREATE TABLE x (y)", "not authorized"),
        ("CREATE TEMP TABLE x (y)", "not authorized"),
        ("ATTACH '/tmp/x' AS y", "not authorized"),
        ("DETACH main", "not authorized"),
        ("PRAGMA writable_schema = 1", "not authorized"),
        ("SELECT * FROM pragma_table_info('people')", "not authorized"),
        ("VACUUM INTO '/tmp/x'", "authoriz"),
        ("BEGIN", "not authorized"),
        ("SELECT load_extension('x')", "not authorized"),
        ("SELECT random()", "not authorized"),
        ("SELECT randomblob(9)", "not authorized"),
        ("SELECT current_timestamp", "not authorized"),
        ("SELECT date('now')", "exception"),
        ("SELECT strftime('%s')", "exception"),
        ("SELECT 1; DROP TABLE people", "one statement"),
        ("", "not a query"),
        ("SELECT '\ud800'", "surrogates"),
        ("SELECT '\0'", "null character"),
        ("SELECT people.id FROM people, people, people", "more than 50 rows|ambiguous"),
        ("SELECT a.id FROM people a, people b", "more than 50 rows"),
        ("SELECT count(*) FROM people a, people b, people c, people d, people e, people f", "too long"),
        (f"{ENDLESS} SELECT max(x) FROM c", "too long|too much memory"),
        (f"{ENDLESS} SELECT y FROM c ORDER BY y", "too long|too much memory"),
        ("SELECT " + "(" * 900 + "1" + ")" * 900, "depth|overflow"),
        ("SELECT " + "1," * 15_000 + "1", "too (large|big|many)"),
        ("SELECT replace(printf('%*d', 20000, 1), ' ', 'xxxxxxxxxx')", "too big"),
    ],
)  # fmt: skip
def test_a_query_reads_and_ends(database: ReadOnlyDatabase, query: str, says: str) -> None:
    before = database.run("SELECT * FROM people").rows
    began = time.process_time()
    with pytest.raises(QueryFailed, match=says):
        database.run(query)
    assert time.process_time() - began < 2
    assert database.run("SELECT * FROM people").rows == before


@pytest.mark.slow
def test_a_query_that_collects_long_texts_is_stopped() -> None:
    database = ReadOnlyDatabase(filled(SCHEMA, POOLS, "s", 12), 1_000_000, 50)
    for rest in ("SELECT max(x) FROM c", "SELECT y FROM c ORDER BY y DESC"):
        began = time.monotonic()
        with pytest.raises(QueryFailed, match=r"too long|too much memory"):
            database.run(f"{ENDLESS.replace('9000', '90000')} {rest}")
        assert time.monotonic() - began < 20
    assert database.run("SELECT * FROM people").rows
    database.close()


def test_common_queries_are_understood(database: ReadOnlyDatabase) -> None:
    for query in (
        "WITH old AS (SELECT * FROM people WHERE age > 20) SELECT count(*) FROM old",
        "SELECT name, rank() OVER (PARTITION BY town_id ORDER BY age) FROM people",
        "SELECT strftime('%Y', '2024-02-03'), date('2024-02-03', '+1 day'), CAST(3.7 AS INTEGER)",
        "SELECT upper(substr(name, 1, 1)) || '.' FROM people WHERE name LIKE 'A%' UNION SELECT 'x'",
        "SELECT CASE WHEN age > 20 THEN 'old' ELSE 'young' END, round(avg(age), 2) FROM people GROUP BY 1",
    ):
        assert database.run(query).rows


def test_rows_refer_to_rows_that_are_there_and_hold_what_the_query_asks_for() -> None:
    database = ReadOnlyDatabase(filled(SCHEMA, {"": ["Dover", 41]}, "s", 12), 10**6, 100)
    ids = database.run("SELECT id FROM town").rows
    assert set(database.run("SELECT town_id FROM people").rows) <= set(ids)
    assert database.run("SELECT count(*) FROM people WHERE name = 'Dover' AND age > 0").rows[0][0]
    assert database.run("SELECT count(*) FROM people WHERE age = 41").rows[0][0]
    database.close()


def test_a_file_is_opened_for_reading_and_stays_as_it_is(play: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.sqlite"
    with sqlite3.connect(file) as connection:
        connection.executescript(SCHEMA + "INSERT INTO people (name, age) VALUES ('Eve', 55);")
    connection.close()
    before = file.read_bytes()
    data = {**ASKED, "schema": SCHEMA, "databases": [str(file)]}
    del data["schema"]
    environment = SqlEnvironment(SqlConfig(), context("raas", tmp_path))
    first = environment.reset(Prompt("p", data), 1)
    assert "CREATE TABLE town" in first.messages[0]["content"]
    assert environment.step(Action("<answer>SELECT 'Eve'</answer>")).reward == 1
    assert file.read_bytes() == before and {f.name for f in tmp_path.iterdir()} == {"mine.sqlite"}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"question": None, "query": None}, "'p' is not a task of the environment 'sql'"),
        ({**ASKED, "query": "SELECT x FROM people"}, "'p': its query fails: no such column: x"),
        ({**ASKED, "schema": "CREATE"}, "'p': its schema fails"),
    ],
)
def test_a_task_that_cannot_be_played_is_named(play: Any, data: dict[str, Any], says: str) -> None:
    with pytest.raises(PromptError, match=says):
        play(data, "<answer>SELECT 1</answer>")
