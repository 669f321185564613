"""A batch: packed sequences of one policy, as served to its trainer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated

import numpy as np
import numpy.typing as npt

from astraflow_core.types.columns import Column, columns_of
from astraflow_core.types.generation import Images, RoutedExperts, images_of_rows
from astraflow_core.types.named_rewards import NamedRewards
from astraflow_core.types.trajectory import NOT_SAMPLED
from astraflow_core.types.turns import GroupTurns
from astraflow_core.types.units import Units

FilledIn = Annotated[npt.NDArray[np.float32] | None, Column("token", "", given="trainer")]


@dataclass(frozen=True)
class Batch:
    """``R`` sequences packed into ``N`` tokens. Arrays per row have the shape ``[R]``, those per token
    ``[N]``, with the rows end to end.

    Statistics of the group are as stamped at acceptance. ``units``, if the batch comes from a dataflow: places in
    trajectories, and statistics of the group over trajectories and over tokens instead of sequences. ``logprobs`` are
    behaviour log-probs. The first token of a row is never trained.

    ``source``, if rows that another policy of that name sampled are among them: their log-probs and versions are
    *that policy's*, so a ratio against ``logprobs`` corrects for its sampling, and ``counted_from`` is the version
    from which the age of each row counts (:attr:`ages`). Without a ``source`` that is ``version``.

    ``turn_rewards``, ``turn_states`` and ``teacher_logprobs``, if a row of the batch has such. ``turns``, if the batch comes from a dataflow:
    those of the whole groups. ``named_rewards``, if the trainer asked for any.

    ``routed_experts`` ``[N, layers, top_k]``, if a row has such: see :data:`~astraflow_core.types.generation.RoutedExperts`. A trainer with
    capability ``router_replay`` imposes them on the policy that it trains, not on a reference model.

    ``images``, if rows have such, by their places among the ``N`` tokens. Only a trainer with capability ``images`` gets any.

    ``version`` is the version that the batch will update: a row's staleness is ``version`` minus the
    smallest version of its trained tokens. ``temperature`` is the sampling temperature that the behaviour
    log-probs include (1.0 if the engine reports raw ones); a trainer divides its logits by it.

    Filled by the trainer's loop: ``reference``, ``proximal``, ``current``, ``values``, ``logit_gradients``, ``advantages``,
    and ``weights``: loss term → each token's share in it, float32 ``[N]``.
    """

    id: str
    policy: str
    version: int
    lengths: Annotated[
        npt.NDArray[np.int32],
        Column("row", "tokens of the row; their sum is `tokens` of the header", of_row="length"),
    ]
    tokens: Annotated[npt.NDArray[np.int32], Column("token", "token id")]
    loss_mask: Annotated[
        npt.NDArray[np.bool_],
        Column(
            "token",
            "1: sampled, and to be trained; else 0. The first token of a sequence is never sampled",
            not_sampled=0,
        ),
    ]
    logprobs: Annotated[
        npt.NDArray[np.float32],
        Column(
            "token",
            "log-prob of the token, given those before it in its sequence, in nats and at the temperature of the "
            "task's sampling: of `log_softmax(logits / temperature)`, and of the logits themselves where that is 0",
            not_sampled=0,
            finite=True,
        ),
    ]
    versions: Annotated[
        npt.NDArray[np.int32],
        Column("token", "version of the policy that sampled the token", not_sampled=NOT_SAMPLED),
    ]
    rewards: Annotated[
        npt.NDArray[np.float32],
        Column("row", "reward of the sequence", of_row="reward", finite=True),
    ]
    group: Annotated[npt.NDArray[np.int64], Column("row", "equal for rows of one group")]
    trajectory: Annotated[npt.NDArray[np.int64], Column("row", "equal for rows of one trajectory")]
    group_size: Annotated[
        npt.NDArray[np.int32],
        Column(
            "row",
            "sequences that the policy has in the whole group",
            of_row="group_size",
            statistic=True,
        ),
    ]
    group_mean: Annotated[
        npt.NDArray[np.float32],
        Column("row", "mean of their rewards", of_row="group_mean", statistic=True, finite=True),
    ]
    group_std: Annotated[
        npt.NDArray[np.float32],
        Column(
            "row",
            "standard deviation of their rewards, with n-1; 0 for one",
            of_row="group_std",
            statistic=True,
            finite=True,
        ),
    ]
    temperature: float = 1.0
    units: Units | None = None
    turns: GroupTurns | None = None
    named_rewards: NamedRewards | None = None
    source: str = ""
    counted_from: Annotated[
        npt.NDArray[np.int32] | None,
        Column(
            "row",
            "version from which the age of the row counts: the one that a batch of the policy that sampled it would "
            "update",
            given="source",
        ),
    ] = None
    turn_rewards: Annotated[
        npt.NDArray[np.float32] | None,
        Column(
            "token",
            "what a turn earned, at the turn's last token; 0 elsewhere",
            finite=True,
            sparse=True,
        ),
    ] = None
    turn_states: Annotated[
        npt.NDArray[np.int64] | None,
        Column(
            "token",
            "key of the state in which a turn was taken, at the turn's last token; 0 elsewhere",
            sparse=True,
            keys=True,
        ),
    ] = None
    teacher_logprobs: Annotated[
        npt.NDArray[np.float32] | None,
        Column(
            "token",
            "log-prob that a teacher gives the token, in nats; 0 where it was not sampled",
            finite=True,
            sparse=True,
        ),
    ] = None
    routed_experts: RoutedExperts | None = None
    images: Images = ()
    reference: FilledIn = None
    proximal: FilledIn = None
    current: FilledIn = None
    values: FilledIn = None
    logit_gradients: FilledIn = None
    advantages: FilledIn = None
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
        """int32 ``[N]``: age of each token in versions of the policy that sampled it; meaningless
        where none was sampled."""
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
        for column in BATCH_COLUMNS:
            value = getattr(self, column.name)
            if value is not None:
                changed[column.name] = value[rows if column.per == "row" else tokens]
        if self.routed_experts is not None:
            changed["routed_experts"] = self.routed_experts[tokens]
        if self.images:
            changed["images"] = images_of_rows(self.images, self.offsets, rows.tolist())
        if self.units is not None:
            changed["units"] = self.units.take(rows)
        if self.named_rewards is not None:
            changed["named_rewards"] = self.named_rewards.take(rows)
        return replace(self, **changed)  # type: ignore[arg-type]


BATCH_COLUMNS = columns_of(Batch)
"""All arrays of a batch but those of its units and weights."""
