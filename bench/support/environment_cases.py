"""The cases of ``bench.environments``: each environment and the bare library, with the same actions.

To add one, write a function that returns a :class:`Case` and name it in :data:`CASES`.
"""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from astraflow_core.catalog import Catalog
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt, RunInfo
from bench.support import openenv_stand_in

Script = Sequence[str]


@dataclass(frozen=True, slots=True)
class Case:
    """An environment by its ``table``, as ``[workflow.environment]`` has it; episodes as a task and the actions that are
    taken, until it is over; and ``bare``, which plays the episodes by the library alone and returns the number of steps."""

    table: Mapping[str, Any]
    episodes: Sequence[tuple[Prompt, Script]]
    bare: Callable[[], Awaitable[int]]


def context() -> ComponentContext:
    """That of a run without a folder."""
    run = RunInfo("bench", 0, 1, 0, ("solver",), Path("/nonexistent"))
    return ComponentContext(run, "raas", "", 0, Path("/nonexistent"))


def key_door() -> Case:
    """Our text game, on the event loop; the bare side calls its methods directly."""
    return _game("key_door", ["right", "take", "left", "left", "open", "right"])


def binary_search() -> Case:
    """Our other text game, a binary search."""
    return _game("binary_search", ["32", "16", "48", "8", "40", "56"])


def _game(name: str, script: Script) -> Case:
    return _ours(name, "game_levels", {"game": name}, lambda task: script, 256)


def adventure() -> Case:
    """Our text adventure after TextWorld, on the event loop; the bare side calls its methods directly."""
    script = ("look", "inventory", "go north", "go east", "go south", "go west", "look", "dance")
    return _ours("adventure", "adventure_levels", {"size": 128}, lambda task: script, 128)


def household() -> Case:
    """The household after AlfWorld, on the event loop, each task solved; the bare side calls its methods directly."""
    from astraflow_contrib_household.demonstrations import solution
    from astraflow_contrib_household.room import Room

    def script(task: Prompt) -> Script:
        room = Room(dict(task.data["level"]))
        return [f"THOUGHT: next. ACTION: {command}" for command in solution(room)]

    return _ours("household", "household_tasks", {"size": 64}, script, 64)


def shop() -> Case:
    """The shop after WebShop, on the event loop; the bare side calls its methods directly."""

    def script(task: Prompt) -> Script:
        kind = task.data["goal"]["kind"]
        return [f"search[{kind}]", "click[next >]", "click[< prev]", "click[back to search]"] * 2

    return _ours("shop", "shop_goals", {"size": 64}, script, 64)


def sql() -> Case:
    """Questions about databases, in worker processes: the right query is tried twice, then it is the answer; the bare
    side calls the environment's methods directly."""

    def script(task: Prompt) -> Script:
        query = task.data["query"]
        return [f"<sql>{query}</sql>"] * 2 + [f"<answer>{query}</answer>"]

    return _ours("sql", "sql_questions", {"size": 64}, script, 64, {"turns": 4})


def search_qa() -> Case:
    """Questions with a search over passages, in worker processes; the bare side calls the environment's methods
    directly."""

    def script(task: Prompt) -> Script:
        question = task.data["question"]
        return [f"<search>{question}</search>"] * 3 + ["<answer>nobody</answer>"]

    return _ours("search_qa", "invented_facts", {"size": 64}, script, 64)


def _ours(
    name: str,
    source: str,
    options: Mapping[str, Any],
    script: Callable[[Prompt], Script],
    episodes: int,
    table: Mapping[str, Any] | None = None,
) -> Case:
    """An environment that we ship, played by ``script`` on tasks of its prompt source."""
    catalog = Catalog.discover()
    chosen, keys = catalog.validate_options("prompt_source", source, dict(options), "prompts")
    prompts = chosen.build(keys, context())
    chosen_tasks = [prompts[number % len(prompts)] for number in range(episodes)]
    tasks = [(task, script(task)) for task in chosen_tasks]
    where = "workflow.environment"
    selected, config = catalog.validate_options("environment", name, dict(table or {}), where)
    environment = selected.build(config, context())

    async def bare() -> int:
        steps = 0
        for task, said in tasks:
            began = environment.reset(task, 0)
            if inspect.isawaitable(began):
                await began
                for text in said:
                    steps += 1
                    if (await environment.step(Action(text))).outcome is not None:
                        break
            else:
                for text in said:
                    steps += 1
                    if environment.step(Action(text)).outcome is not None:
                        break
        return steps

    return Case({"use": name, **(table or {})}, tasks, bare)


QUERIES = tuple(
    f"select maker, count(*), avg(price) from parts where price > {price} group by maker order by 2"
    for price in (100, 300, 500, 700, 900)
)
PARTS = 2000


def _database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table parts (id integer primary key, maker text, price integer)")
    rows = [(id, f"maker {id * 7 % 13}", id * 37 % 1000) for id in range(PARTS)]
    connection.executemany("insert into parts values (?, ?, ?)", rows)
    return connection


class SqlTable:
    """A table that is queried in SQL: each action is a query, and its rows are the observation. In worker processes,
    since a query may take long."""

    capabilities = frozenset({"blocking", "deterministic"})

    def __init__(self, config: None, context: ComponentContext) -> None:
        self._connection = _database()
        self._left = 0

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Return the description of the table."""
        self._left = len(QUERIES)
        return Observation(({"role": "user", "content": "parts (id, maker, price)"},))

    def step(self, action: Action) -> Observation:
        """Run a query."""
        rows = self._connection.execute(action.text).fetchall()
        self._left -= 1
        outcome = None if self._left else Outcome.FINISHED
        return Observation(({"role": "user", "content": str(rows)},), 0.0, outcome)

    def close(self) -> None:
        """Free the database."""
        self._connection.close()


def sqlite() -> Case:
    """Queries of a third of a millisecond, in workers; bare is Python's own module."""
    episodes = [(Prompt(f"parts-{number}"), QUERIES) for number in range(64)]
    connection = _database()

    async def bare() -> int:
        steps = 0
        for _, script in episodes:
            for query in script:
                steps += bool(str(connection.execute(query).fetchall()))
        return steps

    return Case({"use": f"{__name__}:SqlTable"}, episodes, bare)


HANDS = 128
HITS = ("1", "1", "0")


def gymnasium() -> Case:
    """Gymnasium's Blackjack, in workers, whose steps take some ten microseconds; bare is Gymnasium alone."""
    import gymnasium as library

    episodes = [(Prompt(f"seed-{seed}", {"seed": seed}), HITS) for seed in range(HANDS)]
    game = library.make("Blackjack-v1")

    async def bare() -> int:
        steps = 0
        for seed in range(HANDS):
            game.reset(seed=seed)
            for said in HITS:
                steps += 1
                _, _, terminated, truncated, _ = game.step(int(said))
                if terminated or truncated:
                    break
        return steps

    return Case({"use": "gymnasium", "id": "Blackjack-v1"}, episodes, bare)


GUESSES = ("[10]", "[5]", "[15]", "[3]", "[8]", "[13]", "[18]", "[1]", "[20]", "[7]")


def textarena() -> Case:
    """TextArena's GuessTheNumber, in workers, made anew for each episode; bare is TextArena alone, which does so, too, since
    games may keep what they have drawn."""
    import textarena as library

    episodes = [(Prompt(f"seed-{seed}", {"seed": seed}), GUESSES) for seed in range(HANDS)]

    async def bare() -> int:
        steps = 0
        for seed in range(HANDS):
            game = library.make("GuessTheNumber-v0-raw")
            game.reset(num_players=1, seed=seed)
            for said in GUESSES:
                steps += 1
                game.get_observation()
                done, _ = game.step(action=said)
                if done:
                    break
        return steps

    return Case({"use": "textarena", "game": "GuessTheNumber-v0"}, episodes, bare)


def openenv() -> Case:
    """A server of OpenEnv's protocol, on the event loop; bare is one WebSocket, which sends and reads the same messages. The
    server's CPU time is in both."""
    url = openenv_stand_in.serve()
    script = ["7"] * openenv_stand_in.STEPS
    episodes = [(Prompt(f"seed-{seed}", {"seed": seed}), script) for seed in range(HANDS)]

    async def bare() -> int:
        steps = 0
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/ws") as socket:
            for seed in range(HANDS):
                await socket.send_json({"type": "reset", "data": {"seed": seed}})
                await socket.receive_json()
                for said in script:
                    steps += 1
                    await socket.send_json({"type": "step", "data": {"message": said}})
                    if (await socket.receive_json())["data"]["done"]:
                        break
        return steps

    return Case({"use": "openenv", "url": url}, episodes, bare)


CASES: Mapping[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (
        key_door, binary_search, adventure, household, shop, sql, search_qa, sqlite, gymnasium, textarena, openenv,
    )
}  # fmt: skip
