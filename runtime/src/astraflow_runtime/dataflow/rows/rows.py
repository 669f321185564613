"""Rows: views into the body of a push, each one sequence of one policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from astraflow_core.types import BufferedRow, GroupSummary, Prompt
from astraflow_runtime.dataflow.journal.entries import BodyLocation
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_runtime.dataflow.rows.statistics import GroupStatistics, group_statistics
from astraflow_wire.groups import GroupHeader, ReceivedGroup


@dataclass(frozen=True, slots=True)
class GroupRewards:
    """All sequences that a policy has in a group of ``trajectories``: the ``index`` of each in the group and which
    ``trajectory`` it belongs to (int64 ``[n]``), ``rewards`` (float64 ``[n]``), ``own`` where the
    reward belongs to the sequence alone (bool ``[n]``), and ``trained`` tokens (int32 ``[n]``)."""

    trajectories: int
    index: npt.NDArray[np.int64]
    trajectory: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float64]
    own: npt.NDArray[np.bool_]
    trained: npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Row:
    """Sequence ``index`` of a received group, number ``place`` of those that its policy has in it, which are
    ``siblings``. ``group`` and ``trajectory`` are numbers unique in the run, ``trained`` its trained tokens,
    ``body`` the place of the group in the journal (``None``: none)."""

    item: BufferedRow
    received: ReceivedGroup
    index: int
    group: int
    trajectory: int
    trained: int
    siblings: GroupRewards
    place: int
    body: BodyLocation | None = None

    @property
    def policy(self) -> str:
        """The policy that sampled the sequence."""
        return self.received.header.sequences[self.index].policy

    @property
    def min_version(self) -> int:
        """Smallest version of its trained tokens."""
        return self.item.min_version


class LoggedGroup(ReceivedGroup):
    """A group whose header is decoded; ``read`` loads its body from the journal when a column is
    first used.
    """

    __slots__ = ("_read",)

    def __init__(self, header: GroupHeader, read: Callable[[], bytes]) -> None:
        self.header, self._read = header, read

    def __getattr__(self, column: str) -> Any:
        # Python calls this only for an attribute without a value.
        if column.startswith("_"):
            raise AttributeError(column)
        super().__init__(self._read())
        return getattr(self, column)


def leave_to_journal(rows: Iterable[Row], reader: JournalReader) -> None:
    """Free the memory of the bodies of rows that may be served again: ``reader`` reads them if they are. Rows of one
    group continue to share one; those of it that are not among ``rows`` keep theirs."""
    left: dict[BodyLocation, LoggedGroup] = {}
    for row in rows:
        if row.body is None:
            continue
        if row.body not in left:
            header = replace(row.received.header, turns=[], episodes=[], spans=[])
            left[row.body] = LoggedGroup(header, partial(reader.body, row.body))
        row.received = left[row.body]


@dataclass(frozen=True, slots=True)
class PolicyShare:
    """The sequences of one policy in a pushed group: their indexes and their summary."""

    indexes: tuple[int, ...]
    summary: GroupSummary
    statistics: GroupStatistics
    rewards: GroupRewards


def rewards_of(header: GroupHeader, policy: str, trained: npt.NDArray[np.int32]) -> GroupRewards:
    """All sequences that a policy has in a group, of which ``trained`` has the trained tokens."""
    there = enumerate(header.sequences)
    own = [(index, sequence) for index, sequence in there if sequence.policy == policy]
    rewards = np.array([sequence.reward for _, sequence in own], dtype=np.float32)
    return GroupRewards(
        header.trajectories,
        np.array([index for index, _ in own], dtype=np.int64),
        np.array([sequence.trajectory for _, sequence in own], dtype=np.int64),
        rewards.astype(np.float64),
        np.array([sequence.own_reward for _, sequence in own], dtype=np.bool_),
        trained,
    )


def trained_tokens(received: ReceivedGroup) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Trained tokens of each sequence, int64 ``[n]``."""
    if not received.header.sequences:
        return np.empty(0, dtype=np.int64)
    return np.add.reduceat(received.loss_mask, received.offsets[:-1], dtype=np.int64)


def shares_of(
    received: ReceivedGroup,
    trained: np.ndarray[tuple[int], np.dtype[np.int64]],
    prompt: Prompt,
    versions: Mapping[str, int],
) -> dict[str, PolicyShare]:
    """The share of each policy that has sequences in a group, with statistics over all of them. ``versions``: policy
    → newest version."""
    headers = received.header.sequences
    indexes: dict[str, list[int]] = {}
    for index, header in enumerate(headers):
        indexes.setdefault(header.policy, []).append(index)
    counts = trained.astype(np.int32)
    shares = {}
    for policy, of_policy in indexes.items():
        own = np.array(of_policy)
        sequences = [headers[index] for index in of_policy] if len(indexes) > 1 else headers
        # Computed from what the trainer gets, so that rewards which are equal there have no spread
        # here.
        rewards = np.array([header.reward for header in sequences], dtype=np.float32)
        summary = GroupSummary(
            policy,
            prompt,
            rewards.astype(np.float64),
            np.array([header.length for header in sequences], dtype=np.int32),
            counts[own],
            np.array([header.min_version for header in sequences], dtype=np.int32),
            np.array([header.truncated for header in sequences], dtype=np.bool_),
            versions[policy],
        )
        siblings = GroupRewards(
            received.header.trajectories,
            own,
            np.array([header.trajectory for header in sequences], dtype=np.int64),
            summary.rewards,
            np.array([header.own_reward for header in sequences], dtype=np.bool_),
            summary.trained,
        )
        statistics = group_statistics(summary.rewards)
        shares[policy] = PolicyShare(tuple(of_policy), summary, statistics, siblings)
    return shares


def rows_of(
    received: ReceivedGroup,
    share: PolicyShare,
    oldest: int,
    first_arrival: int,
    group: int,
    first_trajectory: int,
) -> tuple[list[Row], int]:
    """The rows of a policy in an accepted group that have something to train, without those that have a token of a version below
    ``oldest``, and how many of these there are. Their numbers begin with ``first_arrival`` and ``first_trajectory``."""
    headers, prompt_id = received.header.sequences, received.header.prompt_id
    rewards, statistics = share.rewards, share.statistics
    size, mean, std = statistics.size, statistics.mean, statistics.std
    rows, stale = list[Row](), 0
    for position, trained in enumerate(share.summary.trained.tolist()):
        if trained == 0:
            continue
        index = share.indexes[position]
        header = headers[index]
        if header.min_version < oldest:
            stale += 1
            continue
        item = BufferedRow(
            first_arrival + len(rows),
            prompt_id,
            header.min_version,
            header.length,
            header.reward,
            size,
            mean,
            std,
        )
        trajectory = first_trajectory + header.trajectory
        rows.append(Row(item, received, index, group, trajectory, trained, rewards, position))
    return rows, stale
