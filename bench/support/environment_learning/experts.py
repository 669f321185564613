"""Demonstrators of an environment: the replies that solve a task, and the prompt before each of them."""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astraflow_contrib_text_games.adventure_levels import distances
from astraflow_contrib_text_games.adventure_state import AdventureState
from astraflow_core.catalog import Catalog
from astraflow_core.types import Action, Prompt
from bench.support.environment_cases import context
from bench.support.warm_start import Dialogue


def coin(task: Prompt) -> list[str]:
    """The shortest way to the coin, found with the full map of the house."""
    house = AdventureState(dict(task.data["level"]))
    away = distances(house.level, house.where["coin"])
    replies: deque[str] = deque()
    while away[house.at]:
        direction = min(house.rooms[house.at], key=lambda way: away[house.rooms[house.at][way]])
        if f"open {direction} door" in house.possible():
            replies.append(f"open {direction} door")
            house.do(replies[-1])
        replies.append(f"go {direction}")
        house.do(replies[-1])
    return [*replies, "take coin"]


def sql(task: Prompt) -> list[str]:
    """The columns of the right query."""
    query = task.data["query"]
    terse = query.removeprefix("SELECT ").removesuffix(" FROM t")
    return [terse]


def code(task: Prompt) -> list[str]:
    """The rest of the program."""
    return [task.data["solution"]]


EXPERTS = {"coin": coin, "sql": sql, "code": code}


async def demonstrations(name: str, config: Mapping[str, Any]) -> list[Dialogue]:
    """What ``EXPERTS[name]`` does on each prompt of a run's configuration: in its environment, or in reply to the prompt."""
    if (folder := str(Path(__file__).parent)) not in sys.path:
        sys.path.append(folder)  # modules that a configuration names lie beside it
    catalog = Catalog.discover()
    source = _built(catalog, "prompt_source", config["prompts"])
    tasks = [source[number] for number in range(len(source))]
    if "environment" not in config["workflow"]:
        return [[(task.data["prompt"], *EXPERTS[name](task))] for task in tasks]
    environment = _built(catalog, "environment", config["workflow"]["environment"])
    made: list[Dialogue] = []
    for task in tasks:
        seen = await _result(environment.reset(task, 0))
        dialogue = []
        for reply in EXPERTS[name](task):
            dialogue.append(("".join(said["content"] for said in seen.messages), reply))
            seen = await _result(environment.step(Action(reply)))
        if not seen.metrics:
            raise RuntimeError(f"{name}: the demonstration of {task.id!r} does not end the episode")
        made.append(dialogue)
    return made


def _built(catalog: Catalog, kind: str, table: Mapping[str, Any]) -> Any:
    options = {key: value for key, value in table.items() if key != "use"}
    chosen, keys = catalog.validate_options(kind, table["use"], options, kind)
    return chosen.build(keys, context())


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
