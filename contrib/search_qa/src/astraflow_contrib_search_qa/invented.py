"""A world of invented people, firms and towns: its passages, and questions about it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

_ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_CODAS = ("", "", "l", "n", "r", "s", "th", "x")
_TRADES = (
    "botanist",
    "carpenter",
    "cellist",
    "geologist",
    "judge",
    "nurse",
    "painter",
    "pilot",
    "poet",
    "surgeon",
)
_GOODS = (
    "bells",
    "bicycles",
    "carpets",
    "clocks",
    "glass",
    "lanterns",
    "paper",
    "ropes",
    "saddles",
    "violins",
)
_RIVERS, _REGIONS = 12, 8


@dataclass(frozen=True, slots=True)
class Town:
    """A town; it is founded in a year."""

    name: str
    region: str
    river: str
    founded: int


@dataclass(frozen=True, slots=True)
class Firm:
    """A firm with its seat in a town."""

    name: str
    town: Town
    goods: str
    founder: str


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who was born in a town and works for a firm."""

    name: str
    birthplace: Town
    firm: Firm
    trade: str
    born: int


class World:
    """All of it follows from a seed and the number of people; no two have one name."""

    def __init__(self, seed: int, people: int) -> None:
        self._generator = random.Random(f"world {seed} {people}")
        self._taken: set[str] = set()
        draw = self._generator
        rivers = [self._name(2) for _ in range(_RIVERS)]
        regions = [self._name(3) for _ in range(_REGIONS)]
        count = max(2, people // 4)
        self.towns = [
            Town(self._name(2), draw.choice(regions), draw.choice(rivers), draw.randint(900, 1900))
            for _ in range(count)
        ]
        names = [f"{self._name(2)} {self._name(2)}" for _ in range(people)]
        self.firms = [
            Firm(
                f"{self._name(2)} Works",
                draw.choice(self.towns),
                draw.choice(_GOODS),
                draw.choice(names),
            )
            for _ in range(count)
        ]
        self.people = [
            Person(
                name,
                draw.choice(self.towns),
                draw.choice(self.firms),
                draw.choice(_TRADES),
                draw.randint(1900, 1999),
            )
            for name in names
        ]

        self._named = {person.name: person for person in self.people}

    def passages(self) -> Iterator[tuple[str, str]]:
        """Title and text of each."""
        for town in self.towns:
            yield (
                town.name,
                (
                    f"{town.name} is a town in the region of {town.region}. It lies on the river {town.river} and was founded in "
                    f"the year {town.founded}."
                ),
            )
        for firm in self.firms:
            yield (
                firm.name,
                (
                    f"{firm.name} is a firm that makes {firm.goods}. It has its seat in {firm.town.name} and was founded by "
                    f"{firm.founder}."
                ),
            )
        for person in self.people:
            yield (
                person.name,
                (
                    f"{person.name}, born in {person.birthplace.name} in {person.born}, is a {person.trade} who works for "
                    f"{person.firm.name}."
                ),
            )

    def question(self, generator: random.Random, hops: int) -> tuple[str, str]:
        """A question that needs the given number of passages, and its answer."""
        made: list[tuple[str, str]] = [
            *self._of_a_town(generator, hops),
            *self._of_a_firm(generator, hops),
            *self._of_a_person(generator, hops),
        ]
        return generator.choice(made)

    def _of_a_town(self, generator: random.Random, hops: int) -> Iterator[tuple[str, str]]:
        town = generator.choice(self.towns)
        if hops == 1:
            yield f"In which year was the town {town.name} founded?", str(town.founded)
            yield f"On which river does {town.name} lie?", town.river

    def _of_a_firm(self, generator: random.Random, hops: int) -> Iterator[tuple[str, str]]:
        firm = generator.choice(self.firms)
        if hops == 1:
            yield f"What does {firm.name} make?", firm.goods
        elif hops == 2:
            yield f"In which region is the seat of {firm.name}?", firm.town.region
            founder = self._named[firm.founder]
            yield f"In which town was the founder of {firm.name} born?", founder.birthplace.name
        else:
            founder = self._named[firm.founder]
            yield (
                f"On which river lies the town in which the founder of {firm.name} was born?",
                founder.birthplace.river,
            )

    def _of_a_person(self, generator: random.Random, hops: int) -> Iterator[tuple[str, str]]:
        person = generator.choice(self.people)
        name = person.name
        if hops == 1:
            yield f"What is the profession of {name}?", person.trade
            yield f"In which year was {name} born?", str(person.born)
        elif hops == 2:
            yield f"On which river lies the town where {name} was born?", person.birthplace.river
            yield f"What does the firm make that {name} works for?", person.firm.goods
        else:
            yield (
                f"In which region is the seat of the firm that {name} works for?",
                person.firm.town.region,
            )
            yield (
                f"In which year was the town founded in which the firm has its seat that {name} works for?",
                str(person.firm.town.founded),
            )

    def _name(self, syllables: int) -> str:
        draw = self._generator
        for longer in range(1000):
            count = syllables + longer // 50
            parts = [
                draw.choice(_ONSETS) + draw.choice(_VOWELS) + draw.choice(_CODAS)
                for _ in range(count)
            ]
            name = "".join(parts).capitalize()
            if name not in self._taken:
                self._taken.add(name)
                return name
        raise AssertionError("names grow until one is free")
