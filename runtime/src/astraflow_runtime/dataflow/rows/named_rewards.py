"""Rewards by name, of metrics of episodes, with statistics over whole groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import UserError
from astraflow_core.types import NamedRewards
from astraflow_runtime.config.named_rewards import HOW
from astraflow_runtime.dataflow.rows.rows import Row
from astraflow_runtime.dataflow.rows.statistics import spread_in_groups


def named_rewards_of(rows: Sequence[Row], names: Sequence[str]) -> NamedRewards:
    """Those of ``rows``. The statistics are over the trajectories in which the policy of a row has sequences in its
    group, computed in float64 from float32 values. :class:`UserError` if an episode has no metric of a name."""
    shares = list({id(row.siblings): row for row in rows}.values())
    there = [np.unique(row.siblings.trajectory) for row in shares]
    sizes = [len(each) for each in there]
    firsts = np.cumsum([0, *sizes])
    blocks = [_earned(row, names, each) for row, each in zip(shares, there, strict=True)]
    values = np.concatenate(blocks, axis=1)
    group = np.repeat(np.arange(len(shares)), sizes)
    mean, std = (
        np.array(each) for each in zip(*(spread_in_groups(group, v) for v in values), strict=True)
    )
    of = {id(row.siblings): number for number, row in enumerate(shares)}
    number = np.array([of[id(row.siblings)] for row in rows], np.int64)
    place = firsts[number] + np.array(
        [
            np.searchsorted(there[share], row.siblings.trajectory[row.place])
            for share, row in zip(number.tolist(), rows, strict=True)
        ],
        np.int64,
    )
    return NamedRewards(
        tuple(names),
        values[:, place].astype(np.float32),
        mean[:, number].astype(np.float32),
        std[:, number].astype(np.float32),
    )


def _earned(
    row: Row, names: Sequence[str], trajectories: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """What each of the trajectories of the row's group earned: float64 ``[K, n]``."""
    header = row.received.header
    metrics, wanted = header.metrics, trajectories.tolist()
    found = []
    for name in names:
        column = metrics.get(f"{name}/{row.policy}") or metrics.get(name) or []
        earned = [column[index] for index in wanted] if column else [None]
        if None in earned:
            known = ", ".join(map(repr, metrics)) or "none"
            raise UserError(
                f"the algorithm of policy {row.policy!r} reads the named reward {name!r}, which an episode of prompt "
                f"{header.prompt_id!r:.200} does not have (metrics of the group: {known:.500}); {HOW}"
            )
        found.append(earned)
    return np.array(found, dtype=np.float32).astype(np.float64)
