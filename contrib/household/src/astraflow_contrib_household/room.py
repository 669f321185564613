"""A room as it changes: where one is, what is open, what is held, clean, hot or cold."""

from __future__ import annotations

import json
from typing import Any

from astraflow_contrib_household.levels import OBJECTS, OPENABLE, PLACES, WITH, goal_of, kind_of

_UNDONE = {"heat": "cool", "cool": "heat"}
_DONE = {"clean": "clean", "heat": "hot", "cool": "cold"}


class Room:
    """The room of a level. :class:`KeyError` or :class:`ValueError` if the level is none."""

    def __init__(self, level: dict[str, Any]) -> None:
        self.level = level
        self.places = [str(place) for place in level["places"]]
        self.where = {str(name): str(place) for name, place in level["objects"].items()}
        unknown = [p for p in self.places if kind_of(p) not in PLACES]
        unknown += [
            n for n, p in self.where.items() if kind_of(n) not in OBJECTS or p not in self.places
        ]
        if (
            unknown
            or level["kind"] not in ("put", "puttwo", *WITH)
            or level["object"] not in OBJECTS
        ):
            raise ValueError(f"a level with {[*unknown, level['kind'], level['object']][0]!r}")
        self.goal = goal_of(level)
        self.at = self.held = ""
        self.opened: set[str] = set()
        self.done: dict[str, set[str]] = {name: set() for name in self.where}

    @property
    def solved(self) -> bool:
        """Whether as many objects as required are in the required place and state."""
        level = self.level
        right = [
            name
            for name, place in self.where.items()
            if kind_of(name) == level["object"]
            and kind_of(place) == level["target"]
            and (level["kind"] not in WITH or level["kind"] in self.done[name])
        ]
        return len(right) >= (2 if level["kind"] == "puttwo" else 1)

    @property
    def state(self) -> str:
        """All that decides what can follow."""
        done = {name: sorted(states) for name, states in self.done.items()}
        return json.dumps([self.at, self.held, sorted(self.opened), self.where, done])

    @property
    def beginning(self) -> str:
        """What one sees first."""
        seen = ", ".join(f"a {place}" for place in self.places)
        return f"You are in the middle of a room. Looking quickly around you, you see {seen}.\nYour task is to: {self.goal}"

    def possible(self) -> list[str]:
        """The commands that do something here, in order."""
        found = ["inventory", "look"]
        found += [f"go to {place}" for place in self.places if place != self.at]
        if not self.at:
            return sorted(found)
        found.append(f"examine {self.at}")
        kind = kind_of(self.at)
        if kind in OPENABLE:
            found.append(f"{'close' if self.at in self.opened else 'open'} {self.at}")
        if self._reachable(self.at):
            if self.held:
                found.append(f"put {self.held} in/on {self.at}")
            else:
                found += [f"take {name} from {self.at}" for name in self._inside(self.at)]
        for action, place in WITH.items():
            if self.held and kind == place and action in OBJECTS[kind_of(self.held)]:
                found.append(f"{action} {self.held} with {self.at}")
        return sorted(found)

    def do(self, command: str) -> str:
        """Do what a command says; what comes of it. What is not possible changes nothing."""
        words = " ".join(command.lower().strip().rstrip(".").split())
        if words not in self.possible():
            return "Nothing happens."
        action, _, rest = words.partition(" ")
        match action:
            case "inventory":
                return (
                    f"You are carrying: a {self.held}."
                    if self.held
                    else "You are not carrying anything."
                )
            case "look":
                return self._look()
            case "go":
                self.at = rest.removeprefix("to ")
                return f"You arrive at {self.at}. {self._contents()}"
            case "examine":
                return self._contents()
            case "open":
                self.opened.add(self.at)
                return f"You open the {self.at}. {self._contents()}"
            case "close":
                self.opened.discard(self.at)
                return f"You close the {self.at}."
            case "take":
                self.held = rest.partition(" from ")[0]
                self.where[self.held] = ""
                return f"You pick up the {self.held} from the {self.at}."
            case "put":
                put, self.held = self.held, ""
                self.where[put] = self.at
                return f"You put the {put} in/on the {self.at}."
        self.done[self.held].add(action)
        self.done[self.held].discard(_UNDONE.get(action, ""))
        return f"You {action} the {self.held} using the {self.at}; it is {_DONE[action]} now."

    def _reachable(self, place: str) -> bool:
        return kind_of(place) not in OPENABLE or place in self.opened

    def _inside(self, place: str) -> list[str]:
        return [name for name, where in self.where.items() if where == place]

    def _look(self) -> str:
        if not self.at:
            return "You are in the middle of a room."
        return f"You are facing the {self.at}. {self._contents()}"

    def _contents(self) -> str:
        if not self._reachable(self.at):
            return f"The {self.at} is closed."
        inside = ", ".join(f"a {name}" for name in self._inside(self.at)) or "nothing"
        if kind_of(self.at) in OPENABLE:
            return f"The {self.at} is open. In it, you see {inside}."
        return f"On the {self.at}, you see {inside}."
