"""Which columns of a row the frames of pushed groups and of batches have, and in which order; docs/processes.md
repeats it. What a column is, the field of :class:`~astraflow_core.types.Batch` or :class:`~astraflow_core.types.Units`
says that declares it."""

from __future__ import annotations

from functools import cache

from astraflow_core.types.batch import BATCH_COLUMNS
from astraflow_core.types.columns import Column
from astraflow_core.types.units import UNIT_COLUMNS

TOKEN_COLUMNS = tuple(
    c for c in BATCH_COLUMNS if (c.per, c.given, c.sparse) == ("token", "dataflow", False)
)
"""Of a pushed group, and of a batch: an element for each token, over all sequences in their order."""

SPARSE_COLUMNS = tuple(c for c in BATCH_COLUMNS if c.sparse)
"""Of a pushed group, and of a batch, if its header names them: two buffers, positions of tokens (int64) and the value
of each."""

ROW_COLUMNS = tuple(c for c in BATCH_COLUMNS if (c.per, c.given) == ("row", "dataflow"))
"""Of a batch: an element for each row, which is a sequence."""

SOURCE_COLUMNS = tuple(c for c in BATCH_COLUMNS if c.given == "source")
"""Of a batch with a ``source``: an element for each row."""


@cache
def batch_columns(units: bool, source: bool) -> tuple[Column, ...]:
    """The buffers of a batch in their order, with or without the columns of ``units`` and of rows of a ``source``."""
    with_units = UNIT_COLUMNS if units else ()
    return ROW_COLUMNS + TOKEN_COLUMNS + with_units + (SOURCE_COLUMNS if source else ())
