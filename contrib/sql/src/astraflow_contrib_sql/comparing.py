"""Whether two results are the same."""

from __future__ import annotations

from collections import Counter

from astraflow_contrib_sql.reading import Cell, QueryResult, Row

_DIGITS = 9


def same(found: QueryResult, expected: QueryResult, ordered: bool) -> bool:
    """Equal rows, each as often, in the same order if that was asked for. Columns count by their place, not their name,
    numbers to nine digits."""
    one, other = ([_plain(row) for row in result.rows] for result in (found, expected))
    if len(one) != len(other) or len(found.columns) != len(expected.columns):
        return False
    return one == other if ordered else Counter(one) == Counter(other)


def right_columns(found: QueryResult, expected: QueryResult, ordered: bool) -> float:
    """The share of columns that hold the same cells, each as often, at the same place; of those of the result that has more
    columns."""
    most = max(len(found.columns), len(expected.columns))
    right = sum(
        same(_column(found, place), _column(expected, place), ordered)
        for place in range(min(len(found.columns), len(expected.columns)))
    )
    return right / most


def _column(result: QueryResult, place: int) -> QueryResult:
    return QueryResult((result.columns[place],), tuple((row[place],) for row in result.rows))


def _plain(row: Row) -> tuple[Cell, ...]:
    return tuple(float(f"{cell:.{_DIGITS}g}") if isinstance(cell, float) else cell for cell in row)


def shown(result: QueryResult, rows: int) -> str:
    """A result as a model reads it: a line of names and a line for each row."""
    lines = [" | ".join(result.columns)]
    lines += [" | ".join(_cell(cell) for cell in row) for row in result.rows[:rows]]
    more = len(result.rows) - rows
    lines.append(f"({len(result.rows)} rows{f', {more} not shown' if more > 0 else ''})")
    return "\n".join(lines)


def _cell(cell: Cell) -> str:
    text = "NULL" if cell is None else cell.hex() if isinstance(cell, bytes) else str(cell)
    return text if len(text) <= 80 else text[:77] + "..."
