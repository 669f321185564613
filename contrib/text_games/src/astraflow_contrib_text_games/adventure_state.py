"""A house as it changes: where one is, what one holds, which doors are open, what was cut and heated."""

from __future__ import annotations

import json
from collections.abc import Iterable

from astraflow_contrib_text_games.adventure_levels import CUTS, HEATS, Level

KITCHEN = "kitchen"
DONE = {**CUTS, **HEATS}


class AdventureState:
    """The house of a level. :class:`KeyError`, :class:`TypeError` or :class:`ValueError` if the level is none."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.rooms: dict[str, dict[str, str]] = {
            room: dict(ways) for room, ways in level["rooms"].items()
        }
        self.where: dict[str, str] = dict(level["things"])
        self.closed = {frozenset(pair) for pair in level["doors"]}
        self.recipe: dict[str, dict[str, str]] = dict(level["recipe"])
        self.at = str(level["start"])
        reached = {
            self.at,
            *self.where.values(),
            *(o for w in self.rooms.values() for o in w.values()),
        }
        needed = {"coin"} if level["kind"] == "coin" else {"knife", *self.recipe}
        if level["kind"] not in ("coin", "cooking") or not needed <= self.where.keys():
            raise ValueError(f"the kind {level['kind']!r} or what it needs")
        if unknown := sorted(reached - self.rooms.keys()):
            raise ValueError(f"the room {unknown[0]!r}")
        self.held: set[str] = set()
        self.worked: dict[str, set[str]] = {name: set() for name in self.where}
        self.meal = self.won = self.lost = False
        self.reached: set[str] = set()

    @property
    def points(self) -> int:
        """The steps toward the goal that were made, of :attr:`most_points`."""
        return len(self.reached)

    @property
    def most_points(self) -> int:
        """Taking, cutting and heating each ingredient as the recipe says, preparing the meal and eating it; or the coin."""
        if self.level["kind"] == "coin":
            return 1
        return 2 + sum(1 + sum(map(bool, how.values())) for how in self.recipe.values())

    @property
    def state(self) -> str:
        """All that decides what can follow."""
        closed = sorted(sorted(pair) for pair in self.closed)
        worked = {name: sorted(how) for name, how in self.worked.items() if how}
        told = [self.at, sorted(self.held), closed, worked, self.meal, self.won, self.lost]
        return json.dumps([*told, sorted(self.reached)])

    def possible(self) -> list[str]:
        """The commands that do something here, in order."""
        found = ["look", "inventory"]
        for direction, other in self.rooms[self.at].items():
            shut = frozenset((self.at, other)) in self.closed
            found.append(f"open {direction} door" if shut else f"go {direction}")
        found += [f"take {name}" for name, room in self.where.items() if room == self.at]
        food = [name for name in self.held if name not in ("knife", "coin")]
        if "knife" in self.held:
            uncut = [name for name in food if not self.worked[name] & set(CUTS.values())]
            found += [f"{cut} {name}" for name in uncut for cut in CUTS]
        if self.at == KITCHEN and self.level["kind"] == "cooking":
            found.append("read cookbook")
            found += [f"{heat} {name}" for name in food for heat in HEATS]
            if not self.meal and all(map(self._is_ready, self.recipe)):
                found.append("prepare meal")
        if self.meal:
            found.append("eat meal")
        return sorted(found)

    def do(self, command: str) -> str:
        """Do what a command says; what comes of it. What is not possible changes nothing."""
        words = " ".join(command.lower().strip().rstrip(".").split())
        if words not in self.possible():
            return "You can't do that."
        verb, _, rest = words.partition(" ")
        match verb:
            case "look":
                return self.view()
            case "inventory":
                return f"You hold {_listed(self._described(n) for n in sorted(self.held)) or 'nothing'}."
            case "go":
                self.at = self.rooms[self.at][rest]
                return self.view()
            case "open":
                direction = rest.partition(" ")[0]
                self.closed.discard(frozenset((self.at, self.rooms[self.at][direction])))
                return f"You open the door to the {direction}."
            case "take":
                return self._take(rest)
            case "read":
                return self._recipe()
            case "prepare":
                self.meal = True
                self.held -= self.recipe.keys()
                self.reached.add("prepare")
                return "The meal is prepared."
            case "eat":
                self.won = True
                self.reached.add("eat")
                return "You eat the meal. It is delicious."
        return self._work(verb, rest)

    def view(self) -> str:
        """The room in which one is."""
        lines = [f"-= {self.at.title()} =-"]
        if self.at == KITCHEN and self.level["kind"] == "cooking":
            lines.append("There are a stove, an oven and a cookbook.")
        for direction, other in self.rooms[self.at].items():
            shut = frozenset((self.at, other)) in self.closed
            lines.append(f"There is {'a closed door' if shut else 'a way'} to the {direction}.")
        here = [self._described(name) for name, room in self.where.items() if room == self.at]
        return "\n".join([*lines, *([f"You see {_listed(here)}."] if here else [])])

    def _take(self, name: str) -> str:
        self.where[name] = ""
        self.held.add(name)
        if name == "coin":
            self.won = True
        if name == "coin" or name in self.recipe:
            self.reached.add(f"take {name}")
        return f"You take the {name}."

    def _work(self, verb: str, name: str) -> str:
        """Cut or heat; what the recipe does not want, or a second heat, spoils an ingredient of it."""
        how, done = self.recipe.get(name), DONE[verb]
        burned = verb in HEATS and bool(self.worked[name] & set(HEATS.values()))
        self.worked[name].add("burned" if burned else done)
        if how is not None and (burned or how["heat" if verb in HEATS else "cut"] != done):
            self.lost = True
            return f"You {verb} the {name}, and it is spoiled for the meal."
        if how is not None:
            self.reached.add(f"{verb} {name}")
        return f"You {verb} the {name}."

    def _is_ready(self, name: str) -> bool:
        how = self.recipe[name]
        return name in self.held and self.worked[name] == {each for each in how.values() if each}

    def _described(self, name: str) -> str:
        words = [*sorted(self.worked[name]), name]
        return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])

    def _recipe(self) -> str:
        lines = [
            f"- {name}" + "".join(f", {each}" for each in how.values() if each)
            for name, how in self.recipe.items()
        ]
        return "\n".join(
            ["The meal needs:", *lines, "Then prepare the meal in the kitchen, and eat it."]
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
