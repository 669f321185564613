"""How stale the rows of each step were, as the cells of a heat map."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np

MOST_ROWS = 24
"""Rows of a map; its last one has all that was staler."""
_MOST_VALUE = 1 << 30


class StalenessCounts:
    """Of one policy: step, versions that rows were old, and how many rows."""

    def __init__(self) -> None:
        self._steps, self._values, self._counts = array("q"), array("q"), array("q")

    def add(self, step: int, histogram: Any) -> None:
        """``staleness`` of a line of ``metrics.jsonl``; what is no count of rows is left out."""
        if not isinstance(histogram, dict):
            return
        for value, count in histogram.items():
            if value.isdecimal() and len(value) < 10 and type(count) is int and 0 <= count < _MOST_VALUE:  # fmt: skip
                self._steps.append(step)
                self._values.append(int(value))
                self._counts.append(count)

    def cells(self, columns: int, first: float, last: float) -> dict[str, Any] | None:
        """The steps from ``first`` to ``last`` in at most ``columns`` columns of ``width`` steps each, the first of which
        begins with the step ``first``. ``counts``: a list for each number of versions from 0 on, with the rows of each column;
        ``more``: the last list also has those that were staler. ``None`` without a row."""
        steps, values, counts = (
            np.array(each) for each in (self._steps, self._values, self._counts)
        )
        kept = (steps >= first) & (steps <= last)
        if not kept.any():
            return None
        steps, values, counts = steps[kept], values[kept], counts[kept]
        begin, end, largest = int(steps.min()), int(steps.max()), int(values.max())
        width = math.ceil((end - begin + 1) / columns)
        wide, high = (end - begin) // width + 1, min(largest + 1, MOST_ROWS)
        places = np.minimum(values, high - 1) * wide + (steps - begin) // width
        found = np.bincount(places, weights=counts, minlength=wide * high).reshape(high, wide)
        return {
            "first": begin,
            "last": end,
            "width": width,
            "more": largest >= MOST_ROWS,
            "counts": found.astype(np.int64).tolist(),
        }
