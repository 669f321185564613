"""Keys and values of the running sequences: one padded pool per layer, one slot per row of the batch.

Layout ``[slots, kv_heads, columns, head_dim]``: the entry of the token at position p of row r lies at
``[r, :, p]``. Rows are left-aligned and compact, so a decoding step reads ``[:rows, :, :columns]`` as a
view. Pools grow by doubling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

TILE = 16
"""Steps read a multiple of this number of columns: attention kernels are fastest on whole vectors."""

Entries = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer, ``[rows, kv_heads, columns, head_dim]`` each."""


def bucket(size: int) -> int:
    """The smallest power of two that is at least ``size``."""
    return 1 << max(0, size - 1).bit_length()


class _Step:
    """Where the layers write in the current step, ``rows`` and ``positions`` int64 ``[tokens]``, and how many ``columns`` of
    the first ``size`` rows they read. ``packed``: all tokens are one sequence for the model, not one of each row."""

    rows: torch.Tensor
    positions: torch.Tensor
    columns = 0
    size = 0
    packed = False


class PooledLayer:
    """One layer of a :class:`KVPool`."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, step: _Step, like: Entries) -> None:
        self._step = step
        self.keys, self.values = (t[:0, :, :0] for t in like)

    def reallocate(self, slots: int, columns: int, live: int) -> None:
        """Resize, keeping what fits of the first ``live`` rows; zeroed, since even masked columns must
        hold finite numbers."""
        self.keys, self.values = (
            _resized(t, slots, columns, live) for t in (self.keys, self.values)
        )

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the step's entries, ``[rows, kv_heads, 1, head_dim]`` or packed ``[1, kv_heads, tokens, head_dim]``; return
        all up to the longest row, ``[rows, kv_heads, columns, head_dim]``."""
        step = self._step
        for pool, states in ((self.keys, key_states), (self.values, value_states)):
            pool[step.rows, :, step.positions] = (
                states[0].transpose(0, 1) if step.packed else states[:, :, 0]
            )
        return self.keys[: step.size, :, : step.columns], self.values[
            : step.size, :, : step.columns
        ]


def _resized(pool: torch.Tensor, slots: int, columns: int, live: int) -> torch.Tensor:
    new = pool.new_zeros((slots, pool.shape[1], columns, pool.shape[3]))
    width = min(columns, pool.shape[2])
    new[:live, :, :width] = pool[:live, :, :width]
    return new


class KVPool:
    """The cache that the model decodes with, with the methods of a ``Cache`` of transformers that models call."""

    is_compileable = False

    def __init__(self) -> None:
        self._step = _Step()
        self._slots = self._columns = 0  # allocated
        self._used = 0  # columns that hold something
        self.layers: list[PooledLayer] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`PooledLayer.update`."""
        return self.layers[layer_idx].update(key_states, value_states)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Columns of this step, first column."""
        return self._step.columns, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns before this step's."""
        return self._step.columns - 1

    get_query_offset = get_seq_length

    def clear(self) -> None:
        """Free all memory."""
        self._slots = self._columns = 0
        self.layers = []

    def store(self, first: int, fresh: Sequence[Entries], source: torch.Tensor) -> None:
        """Give row ``first + i`` the entries that ``fresh`` holds for its row ``source[i]``.

        ``fresh``: per layer, of a prefill over ``[m, T]`` prompts; ``source``: int64 ``[k]``, since equal
        prompts are prefilled once. Rows 0 … ``first`` - 1 stay.
        """
        if not self.layers:
            self.layers = [PooledLayer(self._step, entries) for entries in fresh]
        columns = fresh[0][0].shape[2]
        last = first + len(source)
        self._used = max(self._used, columns) if first else columns
        self._fit(first, last)
        for layer, (keys, values) in zip(self.layers, fresh, strict=True):
            layer.keys[first:last, :, :columns] = keys[source]
            layer.values[first:last, :, :columns] = values[source]

    def begin_step(self, positions: torch.Tensor, columns: int) -> None:
        """Row i writes at column ``positions[i]`` (int64 ``[rows]``); all read the first ``columns``."""
        rows = len(positions)
        at = torch.arange(rows, device=positions.device)
        self._begin(at, positions, columns, rows, packed=False)

    def begin_packed_step(
        self, rows: torch.Tensor, positions: torch.Tensor, columns: int, size: int
    ) -> None:
        """Token i is written at column ``positions[i]`` of row ``rows[i]`` (int64 ``[tokens]`` each), of ``size`` rows. Those
        that turn out to be wrong stay: what is behind the last token of a row is hidden from it, until it is overwritten."""
        self._begin(rows, positions, columns, size, packed=True)

    def _begin(
        self, rows: torch.Tensor, positions: torch.Tensor, columns: int, size: int, packed: bool
    ) -> None:
        self._used = columns
        self._fit(size, size)
        step = self._step
        step.rows, step.positions, step.columns = rows, positions, columns
        step.size, step.packed = size, packed

    def remove(self, rows: Sequence[torch.Tensor], columns: int, erase: bool) -> None:
        """``rows``, int64 ``[k]`` each: those that end, and those that are copied, ``columns`` of them, over others. ``erase``: zero
        what is free then; what an adapter that diverged has left there is hidden from the next sequence, and makes it NaN all the
        same."""
        ended, source, target = rows
        for layer in self.layers:
            for pool in (layer.keys, layer.values):
                if erase:
                    pool[ended] = 0
                if len(source):
                    pool[target, :, :columns] = pool[source, :, :columns]
                if len(source) and erase:
                    pool[source] = 0

    def _fit(self, live: int, rows: int) -> None:
        """Make room for ``rows``, keeping the first ``live``. A pool that must grow one way gives back what
        it no longer needs the other way."""
        if rows <= self._slots and self._used <= self._columns:
            return
        slots, width = bucket(rows), max(TILE, bucket(self._used))
        for layer in self.layers:
            layer.reallocate(slots, width, live)
        self._slots, self._columns = slots, width
