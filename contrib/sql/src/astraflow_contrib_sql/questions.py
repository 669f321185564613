"""Questions about a schema, each with the query that answers it, from easy to hard."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from astraflow_contrib_sql.schemas import Schema, Table, drawn_schema, terse_schema


@dataclass(frozen=True, slots=True)
class Question:
    """``ordered``: the question asks for an order."""

    schema: Schema
    text: str
    query: str
    ordered: bool = False


_AGGREGATES = {"average": "avg", "sum of the": "sum", "lowest": "min", "highest": "max"}


def drawn_question(generator: random.Random, level: str, listed: int = 2) -> Question | None:
    """A question of a level; None if the schema that was drawn has none. Those of ``terse`` list ``listed`` columns."""
    if level == "terse":
        return _terse(generator, listed)
    schema = drawn_schema(generator, related=level in ("join", "nested"))
    template = generator.choice(_TEMPLATES[level])
    made = template(generator, schema)
    return made and Question(schema, *made)


Made = tuple[str, str] | tuple[str, str, bool] | None
Template = Callable[[random.Random, Schema], Made]


def _terse(generator: random.Random, listed: int) -> Question:
    schema = terse_schema()
    columns = generator.sample(sorted(schema.tables[0].columns), listed)
    return Question(schema, "".join(columns), f"SELECT {','.join(columns)} FROM t")  # noqa: S608 - of our own words


def _condition(generator: random.Random, table: Table, other: str = "") -> tuple[str, str]:
    """In words, and in SQL, of a column but for ``other``."""
    column = generator.choice([name for name in table.columns if name != other])
    pool = table.columns[column]
    if isinstance(pool, tuple):
        value = generator.choice(pool)
        return f"{column} is {value}", f"{table.name}.{column} = '{value}'"
    bound = pool[generator.randrange(len(pool) // 4, len(pool) * 3 // 4)]
    word, sign = generator.choice((("above", ">"), ("below", "<"), ("at least", ">=")))
    return f"{column} is {word} {bound}", f"{table.name}.{column} {sign} {bound}"


def _listed(generator: random.Random, schema: Schema) -> Made:
    table = generator.choice(schema.tables)
    words, condition = _condition(generator, table)
    columns = generator.sample(list(table.columns), generator.randint(1, 2))
    return (
        f"List the {' and the '.join(columns)} of each {table.name} whose {words}.",
        f"SELECT {', '.join(columns)} FROM {table.name} WHERE {condition}",  # noqa: S608
    )


def _distinct(generator: random.Random, schema: Schema) -> Made:
    table = generator.choice(schema.tables)
    column = generator.choice(list(table.columns))
    words, condition = _condition(generator, table, column)
    return (
        f"Which different values of {column} does any {table.name} have whose {words}?",
        f"SELECT DISTINCT {column} FROM {table.name} WHERE {condition}",  # noqa: S608
    )


def _both(generator: random.Random, schema: Schema) -> Made:
    table = generator.choice(schema.tables)
    one, first = _condition(generator, table)
    other, second = _condition(generator, table, one.partition(" ")[0])
    word = generator.choice(("and", "or"))
    column = next(iter(table.columns))
    return (
        f"List the {column} of each {table.name} whose {one} {word} whose {other}.",
        f"SELECT {column} FROM {table.name} WHERE {first} {word.upper()} {second}",  # noqa: S608
    )


def _counted(generator: random.Random, schema: Schema) -> Made:
    table = generator.choice(schema.tables)
    words, condition = _condition(generator, table)
    return (
        f"How many rows of {table.name} are there whose {words}?",
        f"SELECT count(*) FROM {table.name} WHERE {condition}",  # noqa: S608
    )


def _aggregated(generator: random.Random, schema: Schema) -> Made:
    table = generator.choice(schema.tables)
    if not (numbers := table.of_kind(range)):
        return None
    words, condition = _condition(generator, table)
    word, function = generator.choice(sorted(_AGGREGATES.items()))
    column = generator.choice(numbers)
    return (
        f"What is the {word} {column} of each {table.name} whose {words}? One number.",
        f"SELECT {function}({column}) FROM {table.name} WHERE {condition}",  # noqa: S608
    )


def _ranked(generator: random.Random, schema: Schema) -> Made:
    table = generator.choice(schema.tables)
    if not (numbers := table.of_kind(range)):
        return None
    column, first, many = (
        generator.choice(numbers),
        next(iter(table.columns)),
        generator.randint(2, 4),
    )
    word, direction = generator.choice((("highest", "DESC"), ("lowest", "ASC")))
    return (
        (
            f"List the {first} of the {many} rows of {table.name} with the {word} {column}, the {word} first; among equals "
            "the lower id first."
        ),
        f"SELECT {first} FROM {table.name} ORDER BY {column} {direction}, id LIMIT {many}",  # noqa: S608
        True,
    )


def _grouped(generator: random.Random, schema: Schema) -> Made:
    table = generator.choice(schema.tables)
    texts, numbers = table.of_kind(tuple), table.of_kind(range)
    if not (texts and numbers):
        return None
    by, column = generator.choice(texts), generator.choice(numbers)
    word, function = generator.choice((("number of rows", "count(*)"), *((f"{w} {column}", f"{f}({column})") for w, f in sorted(_AGGREGATES.items()))))  # fmt: skip
    return (
        f"For each {by} in {table.name}, give the {by} and the {word}.",
        f"SELECT {by}, {function} FROM {table.name} GROUP BY {by}",  # noqa: S608
    )


def _having(generator: random.Random, schema: Schema) -> Made:
    table = generator.choice(schema.tables)
    if not (texts := table.of_kind(tuple)):
        return None
    by, least = generator.choice(texts), generator.randint(2, 3)
    words, condition = _condition(generator, table)
    where = generator.random() < 0.4
    return (
        f"Which values of {by} have at least {least} rows of {table.name}{f' whose {words}' if where else ''}?",
        f"SELECT {by} FROM {table.name}{f' WHERE {condition}' if where else ''} GROUP BY {by} HAVING count(*) >= {least}",  # noqa: S608
    )


def _most_frequent(generator: random.Random, schema: Schema) -> Made:
    table = generator.choice(schema.tables)
    if not (texts := table.of_kind(tuple)):
        return None
    by = generator.choice(texts)
    return (
        f"Give each {by} of {table.name} and how many rows have it, the most frequent first, equals by {by}.",
        f"SELECT {by}, count(*) FROM {table.name} GROUP BY {by} ORDER BY count(*) DESC, {by}",  # noqa: S608
        True,
    )


def _of_two_tables(make: Callable[[random.Random, Table, Table], Made]) -> Template:
    """A template of a table and the one that it refers to; nothing is made where no table refers to another."""

    def template(generator: random.Random, schema: Schema) -> Made:
        pair = schema.joined(generator)
        return None if pair is None else make(generator, *pair)

    return template


@_of_two_tables
def _across(generator: random.Random, child: Table, parent: Table) -> Made:
    words, condition = _condition(generator, parent)
    one, other = generator.choice(list(child.columns)), next(iter(parent.columns))
    return (
        (
            f"For each {child.name} of a {parent.name} whose {words}, give the {one} of the {child.name} and the {other} of the "
            f"{parent.name}."
        ),
        (
            f"SELECT {child.name}.{one}, {parent.name}.{other} FROM {child.name} JOIN {parent.name} ON {child.name}.{parent.name}_id = "  # noqa: S608
            f"{parent.name}.id WHERE {condition}"
        ),
    )


@_of_two_tables
def _per_parent(generator: random.Random, child: Table, parent: Table) -> Made:
    label = next(iter(parent.columns))
    numbers = child.of_kind(range)
    choices = [("number of rows", f"count({child.name}.id)")]
    choices += [(f"highest {c}", f"max({child.name}.{c})") for c in numbers]
    word, value = generator.choice(choices)
    return (
        (
            f"For each {parent.name}, also those without any {child.name}, give the id, the {label} and the {word} of its "
            f"{child.name} rows."
        ),
        (
            f"SELECT {parent.name}.id, {parent.name}.{label}, {value} FROM {parent.name} LEFT JOIN {child.name} ON "  # noqa: S608
            f"{child.name}.{parent.name}_id = {parent.name}.id GROUP BY {parent.name}.id"
        ),
    )


@_of_two_tables
def _without(generator: random.Random, child: Table, parent: Table) -> Made:
    words, condition = _condition(generator, child)
    label = next(iter(parent.columns))
    return (
        f"List the {label} of each {parent.name} that has no {child.name} whose {words}.",
        f"SELECT {label} FROM {parent.name} WHERE id NOT IN (SELECT {parent.name}_id FROM {child.name} WHERE {condition})",  # noqa: S608
    )


@_of_two_tables
def _above_average(generator: random.Random, child: Table, parent: Table) -> Made:
    if not (numbers := child.of_kind(range)):
        return None
    column, label = generator.choice(numbers), next(iter(parent.columns))
    return (
        (
            f"For each {child.name} whose {column} is above the average {column} of all {child.name} rows, give its id and the "
            f"{label} of its {parent.name}."
        ),
        (
            f"SELECT {child.name}.id, {parent.name}.{label} FROM {child.name} JOIN {parent.name} ON {child.name}.{parent.name}_id = "  # noqa: S608
            f"{parent.name}.id WHERE {child.name}.{column} > (SELECT avg({column}) FROM {child.name})"
        ),
    )


_TEMPLATES: dict[str, tuple[Template, ...]] = {
    "filter": (_listed, _distinct, _both),
    "aggregate": (_counted, _aggregated, _ranked),
    "group": (_grouped, _having, _most_frequent),
    "join": (_across, _per_parent),
    "nested": (_without, _above_average),
}
