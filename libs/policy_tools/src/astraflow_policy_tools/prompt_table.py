"""A memory of prompts: a few numbers for each prompt that was met."""

from __future__ import annotations

from array import array
from typing import Any


class PromptTable:
    """Columns of numbers, one row per prompt id, in the order in which they were met.

    ``columns`` maps a name to a type code of :mod:`array`: ``"h"`` int16, ``"i"`` int32, ``"f"`` float32,
    ``"d"`` float64. A new row holds zeros. Each column takes its item size per prompt; the ids take what a
    dict of them takes.
    """

    def __init__(self, **columns: str) -> None:
        self._rows: dict[str, int] = {}
        self._columns = {name: array(code) for name, code in columns.items()}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, prompt_id: str) -> bool:
        return prompt_id in self._rows

    def row(self, prompt_id: str) -> int:
        """The row of a prompt, a new one if it was never met."""
        row = self._rows.get(prompt_id)
        if row is None:
            row = self._rows[prompt_id] = len(self._rows)
            for column in self._columns.values():
                column.append(0)
        return row

    def find(self, prompt_id: str) -> int | None:
        """The row of a prompt, or ``None``."""
        return self._rows.get(prompt_id)

    def column(self, name: str) -> array[Any]:
        """A column, to be read and written by row; it stays the same object while rows are added."""
        return self._columns[name]

    def state_dict(self) -> dict[str, Any]:
        """Ids and columns as lists."""
        columns = {name: column.tolist() for name, column in self._columns.items()}
        return {"ids": list(self._rows), "columns": columns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict` of a table with the same columns; :class:`ValueError` if it has others
        or if they are not of one length."""
        ids, columns = state["ids"], state["columns"]
        if columns.keys() != self._columns.keys():
            raise ValueError(
                f"a table of {sorted(columns)} does not have the columns of {sorted(self._columns)}"
            )
        if {len(column) for column in columns.values()} - {len(ids)}:
            raise ValueError(
                f"each column of a table of {len(ids)} prompts must have the same length"
            )
        self._rows = {prompt_id: row for row, prompt_id in enumerate(ids)}
        for name, column in self._columns.items():
            column[:] = array(column.typecode, columns[name])
