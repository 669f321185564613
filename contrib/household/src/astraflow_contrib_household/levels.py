"""Rooms and tasks, drawn from a seed."""

from __future__ import annotations

import json
import random
from typing import Any

from astraflow_contrib_household.config import TaskKind, TasksConfig
from astraflow_core.types import ComponentContext
from astraflow_environments.tasks import PromptList, Task, drawn

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave"})
PLACES = (
    "cabinet",
    "countertop",
    "diningtable",
    "drawer",
    "fridge",
    "garbagecan",
    "microwave",
    "shelf",
    "sinkbasin",
)
WITH = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""What is needed to clean, heat and cool."""
_SEVERAL = frozenset({"cabinet", "drawer", "shelf"})
OBJECTS: dict[str, frozenset[str]] = {
    "apple": frozenset({"clean", "heat", "cool"}),
    "egg": frozenset({"clean", "heat", "cool"}),
    "fork": frozenset({"clean"}),
    "mug": frozenset({"clean", "heat", "cool"}),
    "pan": frozenset({"clean", "cool"}),
    "plate": frozenset({"clean", "heat", "cool"}),
    "potato": frozenset({"clean", "heat", "cool"}),
    "soapbottle": frozenset(),
    "spoon": frozenset({"clean"}),
    "tomato": frozenset({"clean", "heat", "cool"}),
}
"""What can be taken, and what can be done to it."""


class HouseholdTasks(PromptList):
    """Tasks in rooms; ``data["level"]`` has ``kind``, ``object``, ``target``, ``places`` (all of the room) and ``objects``
    (object → place). All can be solved."""

    def __init__(self, config: TasksConfig, context: ComponentContext) -> None:
        def draw(generator: random.Random) -> Task | None:
            level = drawn_level(generator, generator.choice(config.kinds), config.objects)
            if level is None:
                return None
            return json.dumps(level, sort_keys=True), lambda: {"level": level}

        super().__init__(drawn("household_tasks", config, draw))


def drawn_level(generator: random.Random, kind: TaskKind, objects: int) -> dict[str, Any] | None:
    """A room and a task; None if nothing in the room is good for such a task."""
    places = [
        f"{name} {number}"
        for name in PLACES
        for number in range(1, 1 + (generator.randint(1, 3) if name in _SEVERAL else 1))
    ]
    there = [
        f"{name} {number}"
        for name in generator.sample(sorted(OBJECTS), objects)
        for number in range(1, 1 + generator.randint(1, 2))
    ]
    fit = [name for name in there if kind not in WITH or kind in OBJECTS[kind_of(name)]]
    if kind == "puttwo":
        fit = [name for name in fit if name.endswith(" 2")]
    if not fit:
        return None
    wanted = kind_of(generator.choice(fit))
    target = generator.choice([name for name in PLACES if name not in WITH.values()])
    free = [place for place in places if kind_of(place) not in (target, *WITH.values())]
    return {
        "kind": kind,
        "object": wanted,
        "target": target,
        "places": places,
        "objects": {name: generator.choice(free) for name in there},
    }


def kind_of(name: str) -> str:
    """``mug`` of ``mug 2``."""
    return name.rpartition(" ")[0]


def goal_of(level: dict[str, Any]) -> str:
    """The task in words."""
    wanted, target = level["object"], level["target"]
    if level["kind"] == "put":
        return f"put some {wanted} on {target}."
    if level["kind"] == "puttwo":
        return f"find two {wanted} and put them in {target}."
    return f"{level['kind']} some {wanted} and put it in {target}."
