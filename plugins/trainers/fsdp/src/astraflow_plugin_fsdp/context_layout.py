"""Which tokens of a micro-batch each rank of a context group has; arrays only."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from astraflow_core.types.generation import RoutedExperts, not_recorded
from astraflow_training.micro_batches import Indices, MicroBatch


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive tokens of one row: those of a rank at ``queries`` of its own tokens see those at ``keys`` of all, the
    last query sees up to the last key, the previous one all but that, and so on."""

    queries: slice
    keys: slice


def padded(micro: MicroBatch, ranks: int) -> MicroBatch:
    """The same predictions, with each row padded on the right so that two chunks of equal length are
    there for each of ``ranks``."""
    width = micro.input_ids.shape[1]
    more = -width % (2 * ranks)
    ids = np.pad(micro.input_ids, ((0, 0), (0, more)), mode="edge")
    places = micro.position_ids
    if places is not None:
        # The last packed row continues: no query lies behind its end.
        places = np.concatenate([places, places[:, -1:] + 1 + np.arange(more)], axis=1)
    states = micro.states + micro.states // width * more
    routed = micro.routed
    if routed is not None:
        by_row = _by_row(routed, len(ids))
        unknown = not_recorded(routed.dtype)
        added = np.full((len(ids), more, *routed.shape[1:]), unknown, routed.dtype)
        routed = np.concatenate([by_row, added], axis=1).reshape(-1, *routed.shape[1:])
    return replace(micro, input_ids=ids, position_ids=places, states=states, routed=routed)


def columns(width: int, rank: int, ranks: int) -> Indices:
    """The tokens of ``rank`` among the ``width`` of each row: of 2 · ``ranks`` chunks one from the front and the one as far
    from the back, so that every rank sees as many keys as the others (Llama 3, arXiv:2407.21783, 3.3.2)."""
    chunk = _chunk(width, ranks)
    front, back = rank * chunk, (2 * ranks - 1 - rank) * chunk
    return np.concatenate([np.arange(front, front + chunk), np.arange(back, back + chunk)])


def pieces(
    width: int, rank: int, ranks: int, position_ids: Indices | None
) -> tuple[TokenSpan, ...]:
    """What the tokens of :func:`columns` see, in their order. ``position_ids`` int64 ``[1, width]`` of packed rows,
    each of which sees itself only."""
    chunk = _chunk(width, ranks)
    found: list[TokenSpan] = []
    for tokens in np.split(columns(width, rank, ranks), 2):
        starts = np.zeros_like(tokens) if position_ids is None else tokens - position_ids[0, tokens]
        cuts = [0, *(np.flatnonzero(np.diff(starts)) + 1).tolist(), chunk]
        before = chunk if found else 0
        found += [
            TokenSpan(
                queries=slice(before + first, before + last),
                keys=slice(int(starts[first]), int(tokens[0]) + last),
            )
            for first, last in itertools.pairwise(cuts)
        ]
    return tuple(found)


def own(micro: MicroBatch, rank: int, ranks: int) -> tuple[MicroBatch, Indices]:
    """What ``rank`` predicts of a :func:`padded` micro-batch, and int64 ``[m]``: which of its ``n`` positions these are.
    ``states`` are among the rank's own tokens and ``routed`` is of these, ``input_ids`` and ``position_ids`` remain those of
    all."""
    width = micro.input_ids.shape[1]
    chunk = _chunk(width, ranks)
    row, column = np.divmod(micro.states, width)
    nth, place = np.divmod(column, chunk)
    mine = np.flatnonzero(np.minimum(nth, 2 * ranks - 1 - nth) == rank)
    states = row * 2 * chunk + place + np.where(nth < ranks, 0, chunk)
    routed = micro.routed
    if routed is not None:
        chosen = _by_row(routed, len(micro.input_ids))[:, columns(width, rank, ranks)]
        routed = chosen.reshape(-1, *routed.shape[1:])
    given = replace(
        micro,
        positions=micro.positions[mine],
        states=states[mine],
        row=micro.row[mine],
        routed=routed,
    )
    return given, mine


def _by_row(routed: RoutedExperts, rows: int) -> RoutedExperts:
    return routed.reshape(rows, -1, *routed.shape[1:])


def _chunk(width: int, ranks: int) -> int:
    assert width % (2 * ranks) == 0, f"{width} tokens a row are not padded for {ranks} ranks"
    return width // (2 * ranks)
