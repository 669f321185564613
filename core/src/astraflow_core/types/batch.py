"""A batch: packed sequences of one policy, as served to its trainer."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from astraflow_core.types.units import Units


@dataclass(frozen=True)
class Batch:
    """``R`` sequences packed into ``N`` tokens.

    Per row (``[R]``): ``lengths`` int32 with sum ``N``; ``rewards`` float32; ``group`` int64, equal for
    rows of one group; ``trajectory`` int64, equal for rows of one trajectory; ``group_size`` int32,
    ``group_mean`` and ``group_std`` float32 as stamped at acceptance (std with n-1, 0 for one).

    ``units``, if the batch comes from a dataflow: places in trajectories, and statistics of the group over
    trajectories and over tokens instead of sequences.

    ``source``, if rows that another policy of that name sampled are among them: their log-probs and versions are
    *that policy's*, so a ratio against ``logprobs`` corrects for its sampling, and ``counted_from`` (int32
    ``[R]``) is the version from which the age of each row counts (:attr:`ages`): the one that a batch of the
    policy that sampled it would update. Without a ``source`` that is ``version``.

    Per token (``[N]``): ``tokens`` int32; ``loss_mask`` bool; ``logprobs`` float32, behaviour log-prob of
    each token given those before it in its row; ``versions`` int32, -1 where not sampled. The first token
    of a row is never trained.

    ``version`` is the version that the batch will update: a row's staleness is ``version`` minus the
    smallest version of its trained tokens. ``temperature`` is the sampling temperature that the behaviour
    log-probs include (1.0 if the engine reports raw ones); a trainer divides its logits by it.

    Filled by the trainer's loop, each float32 ``[N]``: ``reference``, ``proximal``, ``current``,
    ``values``, ``advantages``, and ``weights``: loss term → each token's share in it.
    """

    id: str
    policy: str
    version: int
    lengths: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    rewards: npt.NDArray[np.float32]
    group: npt.NDArray[np.int64]
    trajectory: npt.NDArray[np.int64]
    group_size: npt.NDArray[np.int32]
    group_mean: npt.NDArray[np.float32]
    group_std: npt.NDArray[np.float32]
    temperature: float = 1.0
    units: Units | None = None
    source: str = ""
    counted_from: npt.NDArray[np.int32] | None = None
    reference: npt.NDArray[np.float32] | None = None
    proximal: npt.NDArray[np.float32] | None = None
    current: npt.NDArray[np.float32] | None = None
    values: npt.NDArray[np.float32] | None = None
    advantages: npt.NDArray[np.float32] | None = None
    weights: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """int64 ``[R + 1]``: row ``i`` is the tokens ``offsets[i]:offsets[i + 1]``."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    @cached_property
    def row_of_token(self) -> npt.NDArray[np.int64]:
        """int64 ``[N]``: the row that each token belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths)

    @property
    def ages(self) -> npt.NDArray[np.int32]:
        """int32 ``[N]``: versions of the policy that sampled a token by which it is old; without a meaning where
        none was sampled."""
        newest = (
            np.int32(self.version)
            if self.counted_from is None
            else np.repeat(self.counted_from, self.lengths)
        )
        return np.asarray(newest - self.versions, dtype=np.int32)

    @property
    def trained_tokens(self) -> int:
        """How many tokens have the loss mask set."""
        return int(np.count_nonzero(self.loss_mask))

    def spread(self, per_row: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Give each token of a row the row's value: float32 ``[R]`` → ``[N]``."""
        return np.repeat(np.asarray(per_row, dtype=np.float32), self.lengths)

    def take(self, rows: npt.NDArray[np.int64]) -> Batch:
        """The batch made of the given rows, in that order; ``weights`` are taken over as they are."""
        rows = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[rows]
        starts = self.offsets[rows]
        first = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[:-1]
        tokens = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(starts - first, lengths)
        changed: dict[str, object] = {"weights": {k: v[tokens] for k, v in self.weights.items()}}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, np.ndarray):
                changed[entry.name] = value[rows if entry.name in _PER_ROW else tokens]
        if self.units is not None:
            changed["units"] = self.units.take(rows)
        return replace(self, **changed)  # type: ignore[arg-type]


_PER_ROW = frozenset(
    {
        "lengths",
        "rewards",
        "group",
        "trajectory",
        "group_size",
        "group_mean",
        "group_std",
        "counted_from",
    }
)
