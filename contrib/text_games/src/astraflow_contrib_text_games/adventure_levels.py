"""Houses to walk through, with a coin to find or a meal to cook, drawn from a seed."""

from __future__ import annotations

import json
import random
from collections import deque
from typing import Any

from astraflow_contrib_text_games.config import AdventureKind, AdventureLevelsConfig
from astraflow_core.types import ComponentContext
from astraflow_environments.tasks import PromptList, Task, drawn

ROOMS = (
    "attic", "backyard", "bathroom", "bedroom", "cellar", "corridor", "garage", "garden", "hall", "kitchen", "library",
    "pantry", "porch", "shed", "study", "workshop",
)  # fmt: skip
INGREDIENTS = (
    "apple", "banana", "carrot", "cheese", "eggplant", "garlic", "leek", "mushroom", "onion", "pepper", "potato", "pumpkin",
    "tomato", "turnip",
)  # fmt: skip
CUTS = {"slice": "sliced", "dice": "diced", "chop": "chopped"}
HEATS = {"fry": "fried", "roast": "roasted"}
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
_STEP = {"north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0)}
_DOORS = 0.25

Level = dict[str, Any]


class AdventureLevels(PromptList):
    """Levels as ``data["level"]``: ``kind``, ``rooms`` (room → direction → room), ``doors`` (pairs of rooms between which one is
    closed), ``start``, ``things`` (thing → room) and ``recipe`` (ingredient → its ``cut`` and ``heat``, '' for none). All can be
    won."""

    def __init__(self, config: AdventureLevelsConfig, context: ComponentContext) -> None:
        def draw(generator: random.Random) -> Task | None:
            kind = generator.choice(config.kinds)
            level = drawn_level(generator, kind, config.rooms, config.ingredients)
            return json.dumps(level, sort_keys=True), lambda: {"level": level}

        super().__init__(drawn("adventure_levels", config, draw))


def drawn_level(
    generator: random.Random, kind: AdventureKind, rooms: int, ingredients: int
) -> Level:
    """A house, and what is to be done in it."""
    names = ["kitchen", *generator.sample([r for r in ROOMS if r != "kitchen"], rooms - 1)]
    ways = _exits(generator, names)
    level: Level = {
        "kind": kind,
        "rooms": ways,
        "doors": [
            [one, other]
            for one in names
            for other in ways[one].values()
            if one < other and generator.random() < _DOORS
        ],
        "start": generator.choice(names),
        "things": {},
        "recipe": {},
    }
    if kind == "coin":
        far = distances(level, level["start"])
        level["things"]["coin"] = max(sorted(far), key=lambda room: far[room])
        return level
    wanted = generator.sample(INGREDIENTS, ingredients)
    others = generator.sample([each for each in INGREDIENTS if each not in wanted], 2)
    level["things"] = {each: generator.choice(names) for each in sorted([*wanted, *others])}
    level["things"]["knife"] = generator.choice(names)
    level["recipe"] = {
        each: {
            "cut": generator.choice(["", *CUTS.values()]),
            "heat": generator.choice(["", *HEATS.values()]),
        }
        for each in wanted
    }
    return level


def distances(level: Level, start: str) -> dict[str, int]:
    """Room → how many rooms it is away, through whatever doors."""
    found, waiting = {start: 0}, deque([start])
    while waiting:
        room = waiting.popleft()
        for other in level["rooms"][room].values():
            if other not in found:
                found[other] = found[room] + 1
                waiting.append(other)
    return found


def _exits(generator: random.Random, names: list[str]) -> dict[str, dict[str, str]]:
    """Rooms on a grid, each with a way to one that was there before."""
    places: dict[tuple[int, int], str] = {(0, 0): names[0]}
    ways: dict[str, dict[str, str]] = {name: {} for name in names}
    for name in names[1:]:
        free = [
            (place, direction, (place[0] + x, place[1] + y))
            for place in places
            for direction, (x, y) in _STEP.items()
            if (place[0] + x, place[1] + y) not in places
        ]
        place, direction, new = generator.choice(free)
        places[new] = name
        ways[places[place]][direction] = name
        ways[name][OPPOSITE[direction]] = places[place]
    return ways
