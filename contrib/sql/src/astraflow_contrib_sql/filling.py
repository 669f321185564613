"""Databases with rows: of a schema and a seed, or files of the user."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Pools = Mapping[str, Any]
"""``table.column`` → the values that its cells are drawn of, or ``{"range": [start, stop, step]}``; ``""`` → values that
the other columns should have now and then."""
_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "iris", "jade")
_LITERAL = re.compile(r"'((?:[^']|'')*)'|(?<![\w.'])(-?\d+(?:\.\d+)?)(?![\w.'])")


def filled(schema: str, pools: Pools, seed: str, rows: int) -> sqlite3.Connection:
    """A database in memory with the tables of ``schema`` and about ``rows`` rows in each, drawn from ``seed``. Foreign keys
    refer to rows that are there. :class:`sqlite3.Error` if the schema is none."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.executescript(schema)
        generator = random.Random(seed)
        keys: dict[tuple[str, str], list[Any]] = {}
        for table in _parents_first(connection):
            _fill(connection, table, pools, generator, rows, keys)
    except BaseException:
        connection.close()
        raise
    return connection


def opened(path: Path) -> sqlite3.Connection:
    """A database file, opened read-only and assumed not to change. :class:`sqlite3.Error` if it is not one."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except BaseException:
        connection.close()
        raise
    return connection


def schema_of(connection: sqlite3.Connection) -> str:
    """The statements that made its tables and views."""
    found = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type IN ('table', 'view') AND sql IS NOT NULL "
        "AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
    )
    return ";\n".join(row[0] for row in found) + ";"


def literals(query: str) -> list[Any]:
    """The texts and numbers of a query: values that rows should have, or nothing would match."""
    found: list[Any] = []
    for text, number in _LITERAL.findall(query):
        value = text.replace("''", "'") if not number else float(number)
        found.append(int(value) if isinstance(value, float) and value.is_integer() else value)
    return found


def _tables(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
    )
    return [row[0] for row in found]


def _parents_first(connection: sqlite3.Connection) -> list[str]:
    """Tables in an order in which foreign keys find their rows, as far as there is one."""
    parents = {
        table: {parent.lower() for parent, _ in _foreign(connection, table).values()}
        for table in _tables(connection)
    }
    order: list[str] = []
    while parents:
        waiting = {table.lower() for table in parents}
        ready = [t for t, needed in parents.items() if not needed - {t.lower()} & waiting]
        for table in ready or [next(iter(parents))]:
            order.append(table)
            del parents[table]
    return order


def _foreign(connection: sqlite3.Connection, table: str) -> dict[str, tuple[str, str]]:
    """Column → the table and column that it refers to."""
    found = connection.execute(
        'SELECT "from", "table", coalesce("to", \'\') FROM pragma_foreign_key_list(?)', (table,)
    )
    return {column: (parent, to) for column, parent, to in found}


def _fill(
    connection: sqlite3.Connection,
    table: str,
    pools: Pools,
    generator: random.Random,
    rows: int,
    keys: dict[tuple[str, str], list[Any]],
) -> None:
    columns = connection.execute(
        "SELECT name, type, pk FROM pragma_table_info(?)", (table,)
    ).fetchall()
    foreign = _foreign(connection, table)
    primary = [name for name, _, pk in columns if pk]
    names = ", ".join(_quoted(name) for name, _, _ in columns)
    places = ", ".join("?" * len(columns))
    insert = f"INSERT OR IGNORE INTO {_quoted(table)} ({names}) VALUES ({places})"  # noqa: S608 - quoted names
    for number in range(1, generator.randint(max(2, rows * 2 // 3), rows) + 1):
        row = []
        for name, kind, pk in columns:
            referred = _referred(foreign.get(name), keys)
            if referred:
                value = generator.choice(referred)
            elif f"{table}.{name}" in pools:
                value = _of_pool(pools[f"{table}.{name}"], generator)
            else:
                value = _cell(
                    kind.upper(), bool(pk) and len(primary) == 1, number, pools, generator
                )
            row.append(value)
        connection.execute(insert, row)
    for name, _, _ in columns:
        found = connection.execute(f"SELECT {_quoted(name)} FROM {_quoted(table)}")  # noqa: S608 - quoted names
        keys[table.lower(), name.lower()] = [cell for (cell,) in found]
    if len(primary) == 1:
        keys[table.lower(), ""] = keys[table.lower(), primary[0].lower()]


def _referred(to: tuple[str, str] | None, keys: dict[tuple[str, str], list[Any]]) -> list[Any]:
    return keys.get((to[0].lower(), to[1].lower()), []) if to else []


def _of_pool(pool: Any, generator: random.Random) -> Any:
    return generator.choice(range(*pool["range"]) if isinstance(pool, Mapping) else pool)


def _cell(kind: str, is_key: bool, number: int, pools: Pools, generator: random.Random) -> Any:
    """A value of a declared type; now and then one of ``pools['']``, which holds what the query asks for."""
    wanted = pools.get("", ())
    if "INT" in kind or "REAL" in kind or "NUM" in kind or "FLOA" in kind or "DOUB" in kind:
        if is_key:
            return number
        numbers = [value for value in wanted if isinstance(value, int | float)]
        if numbers and generator.random() < 0.5:
            return generator.choice(numbers) + generator.choice((-1, 0, 0, 1))
        drawn = generator.randint(0, 100)
        return drawn if "INT" in kind else drawn + generator.randint(0, 9) / 10
    if is_key:
        return f"{generator.choice(_WORDS)} {number}"
    texts = [value for value in wanted if isinstance(value, str)]
    if texts and generator.random() < 0.5:
        return generator.choice(texts).replace("%", generator.choice(_WORDS))
    return generator.choice(_WORDS)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
