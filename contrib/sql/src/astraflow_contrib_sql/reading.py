"""A database that can be read and nothing else, by queries whose work is bounded."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from typing import Any

Cell = str | int | float | bytes | None
Row = tuple[Cell, ...]

_ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_FUNCTION}
)
_DATES = ("date", "time", "datetime", "julianday", "strftime")
_PLAIN = (
    "abs avg count group_concat max min sum total char coalesce format glob hex ifnull iif instr length like likely lower "
    "ltrim nullif printf quote replace round rtrim sign substr substring trim typeof unicode unlikely upper "
    "row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value "
    "acos asin atan atan2 ceil ceiling cos degrees exp floor ln log log10 log2 mod pi pow power radians sin sqrt tan trunc "
    "json json_array json_array_length json_extract json_object json_quote json_type json_valid -> ->>"
)
_FUNCTIONS = frozenset((*_PLAIN.split(), *_DATES))
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
}
_HEAP_BYTES = 256 << 20
_LOOK_EVERY = 100
"""Instructions; one of them can be a search in two long texts."""
_LONGEST_S = 5.0


class QueryFailed(ValueError):
    """The observation after a query without a result."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a query gave: the names of its columns, and its rows in their order."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


class ReadOnlyDatabase:
    """A connection that has been filled, from now on for reading. The same query gives the same result always: functions
    that draw random numbers or read the clock are refused."""

    def __init__(self, connection: sqlite3.Connection, most_steps: int, most_rows: int) -> None:
        self._connection, self._most_steps, self._most_rows = connection, most_steps, most_rows
        self._steps, self._until = 0, 0.0
        connection.isolation_level = None
        connection.text_factory = _text
        connection.execute("PRAGMA temp_store = memory")
        connection.execute(f"PRAGMA hard_heap_limit = {_HEAP_BYTES}")
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        self._calendar: sqlite3.Connection | None = None
        for name in _DATES:
            connection.create_function(name, -1, self._dated(name), deterministic=True)
        connection.set_progress_handler(self._goes_on, _LOOK_EVERY)
        connection.set_authorizer(_authorize)

    def run(self, query: str) -> QueryResult:
        """Execute one query. :class:`QueryFailed` says why it gave nothing: it is not a query, writes, or takes too much."""
        self._steps, self._until = 0, time.monotonic() + _LONGEST_S
        try:
            cursor = self._connection.execute(query)
            rows = cursor.fetchmany(self._most_rows + 1)
            columns = tuple(column[0] for column in cursor.description or ())
            cursor.close()
        except MemoryError as error:
            raise QueryFailed("the query takes too much memory") from error
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            if self._spent:
                raise QueryFailed("the query takes too long") from error
            raise QueryFailed(str(error)[:300]) from error
        if not columns:
            raise QueryFailed("this is not a query")
        if len(rows) > self._most_rows:
            raise QueryFailed(f"the query gives more than {self._most_rows} rows")
        return QueryResult(columns, tuple(rows))

    def close(self) -> None:
        """Forget it."""
        self._connection.close()
        if self._calendar is not None:
            self._calendar.close()

    @property
    def _spent(self) -> bool:
        return self._steps > self._most_steps or time.monotonic() > self._until

    def _goes_on(self) -> int:
        self._steps += _LOOK_EVERY
        return int(self._spent)

    def _dated(self, name: str) -> Any:
        def function(*arguments: Cell) -> Cell:
            moment = arguments[name == "strftime" :]
            if not moment or any(str(part).strip().lower() == "now" for part in moment):
                raise ValueError("reading the clock is not allowed")
            if self._calendar is None:
                self._calendar = sqlite3.connect(":memory:")
            places = ", ".join("?" * len(arguments))
            answer = self._calendar.execute(f"SELECT {name}({places})", arguments)
            cell: Cell = answer.fetchone()[0]
            return cell

        return function


def _authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
    allowed = action in _ALLOWED and (
        action != sqlite3.SQLITE_FUNCTION or str(second).lower() in _FUNCTIONS
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
