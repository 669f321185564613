"""A task of each kind that is solved, as an example for a model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

from astraflow_contrib_household.config import TaskKind
from astraflow_contrib_household.levels import OPENABLE, WITH, drawn_level, kind_of
from astraflow_contrib_household.room import Room


def solution(room: Room) -> list[str]:
    """The commands that solve a room from its beginning, for one who knows where everything is."""
    level = room.level
    target = next(place for place in room.places if kind_of(place) == level["target"])
    wanted = [name for name in room.where if kind_of(name) == level["object"]]
    commands: list[str] = []
    opened: set[str] = set()
    for name in wanted[: 2 if level["kind"] == "puttwo" else 1]:
        commands += _reach(room.where[name], opened)
        commands.append(f"take {name} from {room.where[name]}")
        if level["kind"] in WITH:
            tool = next(place for place in room.places if kind_of(place) == WITH[level["kind"]])
            commands += [f"go to {tool}", f"{level['kind']} {name} with {tool}"]
        commands += _reach(target, opened)
        commands.append(f"put {name} in/on {target}")
    return commands


def demonstration(kind: TaskKind) -> str:
    """A whole episode, in the form of the replies that are asked for."""
    beginning, turns = demonstrated_turns(kind)
    return "\n".join([beginning, *(line for turn in turns for line in turn)])


@cache
def demonstrated_turns(kind: TaskKind) -> tuple[str, tuple[tuple[str, str], ...]]:
    """How the episode begins, and its turns: a reply and what comes of it."""
    generator = random.Random(f"demonstration of {kind}")
    level = None
    while level is None:
        level = drawn_level(generator, kind, 6)
    room = Room(level)
    beginning, turns = room.beginning, []
    for command in solution(room):
        reply = f"THOUGHT: {_thought(command, room)} ACTION: {command}"
        turns.append((reply, room.do(command)))
    assert room.solved, "a solution solves"
    return beginning, tuple(turns)


def _reach(place: str, opened: set[str]) -> Iterator[str]:
    yield f"go to {place}"
    if kind_of(place) in OPENABLE and place not in opened:
        opened.add(place)
        yield f"open {place}"


def _thought(command: str, room: Room) -> str:
    action = command.partition(" ")[0]
    if action == "go":
        need = (
            f"I have the {room.held}; next I need"
            if room.held
            else f"I look for the {room.level['object']} at"
        )
        return f"{need} the {command.removeprefix('go to ')}."
    return {
        "open": "It is closed, so I open it.",
        "take": f"This is what I need: {room.goal}",
        "put": "This is where it belongs.",
    }.get(action, f"It is not yet as the task wants it, so I {action} it.")
