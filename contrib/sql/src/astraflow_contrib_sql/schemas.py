"""Schemas that are drawn: one to three tables of one subject, with some of their columns."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

NAMES = ("Ada", "Bo", "Cleo", "Dan", "Eve", "Finn", "Gia", "Hugo", "Ines", "Jon", "Kim", "Lea", "Max", "Nia", "Otto", "Pia")  # fmt: skip
PLACES = ("Arden", "Brill", "Corby", "Dover", "Elm", "Frome")
COLOURS = ("red", "green", "blue", "white")

Pool = tuple[str, ...] | range
"""The values of a column: texts, or whole numbers."""

ENTITIES: dict[str, dict[str, Pool]] = {
    "customer": {"name": NAMES, "city": PLACES, "age": range(18, 80), "credit": range(0, 500, 10)},
    "product": {"name": ("lamp", "desk", "chair", "shelf", "mug", "clock", "rug", "vase"), "colour": COLOURS, "price": range(1, 200), "stock": range(90)},
    "purchase": {"quantity": range(1, 20), "year": range(2018, 2025), "status": ("open", "paid", "sent", "returned")},
    "author": {"name": NAMES, "country": ("Chile", "Ghana", "India", "Japan", "Spain"), "born": range(1900, 1990)},
    "book": {"title": ("Ash", "Bay", "Crow", "Dune", "Echo", "Fern", "Gale", "Hush"), "genre": ("crime", "poetry", "drama", "travel"), "pages": range(80, 900), "year": range(1950, 2025)},
    "teacher": {"name": NAMES, "room": range(1, 30), "salary": range(2000, 6000, 50)},
    "course": {"title": ("algebra", "art", "biology", "chess", "history", "music"), "level": ("low", "middle", "high"), "hours": range(1, 9)},
    "student": {"name": NAMES, "city": PLACES, "age": range(10, 19)},
    "enrolment": {"grade": range(1, 7), "year": range(2018, 2025)},
    "driver": {"name": NAMES, "town": PLACES, "points": range(12)},
    "vehicle": {"model": ("Ark", "Bee", "Cob", "Dart", "Elk"), "colour": COLOURS, "seats": range(2, 9), "mileage": range(1000, 90_000, 500)},
    "trip": {"distance": range(1, 900), "fare": range(5, 300), "rating": range(1, 6)},
    "farm": {"name": ("Ashcroft", "Birchwood", "Cloverly", "Dellside", "Eastfield"), "county": PLACES, "area": range(5, 400)},
    "harvest": {"crop": ("barley", "maize", "oats", "rye", "wheat"), "tons": range(1, 120), "year": range(2018, 2025)},
    "ship": {"name": ("Aurora", "Borealis", "Comet", "Dawn", "Estrella"), "flag": ("Malta", "Norway", "Panama"), "length": range(40, 400)},
    "voyage": {"port": PLACES, "days": range(1, 60), "cargo": ("coal", "fruit", "grain", "steel")},
}  # fmt: skip
PARENTS = {
    "purchase": ("customer", "product"),
    "book": ("author",),
    "course": ("teacher",),
    "enrolment": ("student", "course"),
    "trip": ("driver", "vehicle"),
    "harvest": ("farm",),
    "voyage": ("ship",),
}
TERSE_COLUMNS = "abcdef"


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the key ``id``, its own columns, and one ``<parent>_id`` for each parent."""

    name: str
    columns: dict[str, Pool]
    parents: tuple[str, ...] = ()

    def of_kind(self, kind: type) -> list[str]:
        """Its columns of texts (:class:`tuple`) or of numbers (:class:`range`)."""
        return [name for name, pool in self.columns.items() if isinstance(pool, kind)]

    @property
    def statement(self) -> str:
        """``CREATE TABLE``"""
        parts = ["id INTEGER PRIMARY KEY"]
        parts += [
            f"{name} {'TEXT' if isinstance(pool, tuple) else 'INTEGER'}"
            for name, pool in self.columns.items()
        ]
        parts += [f"{parent}_id INTEGER REFERENCES {parent}(id)" for parent in self.parents]
        return f"CREATE TABLE {self.name} ({', '.join(parts)});"


@dataclass(frozen=True, slots=True)
class Schema:
    """Tables, those that others refer to first."""

    tables: tuple[Table, ...]

    @property
    def statements(self) -> str:
        """What makes it."""
        return "\n".join(table.statement for table in self.tables)

    @property
    def pools(self) -> dict[str, Any]:
        """``table.column`` → its values, or ``{"range": [start, stop, step]}``."""
        return {f"{t.name}.{c}": _plain(pool) for t in self.tables for c, pool in t.columns.items()}

    def joined(self, generator: random.Random) -> tuple[Table, Table] | None:
        """A table and one of its parents."""
        pairs = [(t, p) for t in self.tables for p in self.tables if p.name in t.parents]
        return generator.choice(pairs) if pairs else None


def drawn_schema(generator: random.Random, related: bool) -> Schema:
    """A schema; with ``related`` some table has a parent."""
    name = generator.choice(sorted(PARENTS if related else ENTITIES))
    parents = PARENTS.get(name, ())
    chosen = [parent for parent in parents if related or generator.random() < 0.5]
    if related and len(chosen) > 1 and generator.random() < 0.5:
        chosen = [generator.choice(chosen)]
    tables = [_table(parent, (), generator) for parent in chosen]
    return Schema((*tables, _table(name, tuple(chosen), generator)))


def terse_schema() -> Schema:
    """One table ``t`` of numbers in columns of one letter."""
    return Schema((Table("t", dict.fromkeys(TERSE_COLUMNS, range(100))),))


def _table(name: str, parents: tuple[str, ...], generator: random.Random) -> Table:
    columns = ENTITIES[name]
    first = next(iter(columns))
    rest = [column for column in columns if column != first]
    kept = generator.sample(rest, generator.randint(min(2, len(rest)), len(rest)))
    return Table(name, {c: columns[c] for c in columns if c == first or c in kept}, parents)


def _plain(pool: Pool) -> Any:
    if isinstance(pool, tuple):
        return list(pool)
    return {"range": [pool.start, pool.stop, pool.step]}
