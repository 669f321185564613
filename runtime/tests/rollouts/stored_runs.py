"""Stores as services write them, from groups and batches of made-up numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from astraflow_core.types import Batch, Completion, Group, Sequence, Trajectory
from astraflow_runtime.rollouts.building import line_of, trajectories, update_record
from astraflow_runtime.rollouts.records import FailureRecord, GroupRecord, Record, StoredVerdict
from astraflow_runtime.rollouts.segments import FOLDER, SegmentWriter, encode
from astraflow_wire.groups import (
    EpisodeCompletion,
    EpisodeText,
    EpisodeTurn,
    ReceivedGroup,
    encode_group,
)


def sequence(tokens: list[int], prompt: int = 2, *, policy: str = "actor") -> Sequence:
    """All but the first ``prompt`` tokens are sampled, by version 3 and then 4."""
    count = len(tokens)
    sampled = np.arange(count) >= prompt
    return Sequence(
        policy,
        np.array(tokens, np.int32),
        sampled,
        np.where(sampled, -(np.arange(count) % 40) / 7, 0).astype(np.float32),
        np.where(sampled, 3 + (np.arange(count) > prompt), -1).astype(np.int32),
    )


def episode(reward: float, text: str, tokens: list[int]) -> tuple[Trajectory, EpisodeText]:
    """A trajectory of one sequence, and its text."""
    own = sequence(tokens)
    completion = Completion("actor", text, own.tokens[2:], "stop")
    told = EpisodeText(
        [
            EpisodeTurn("prompt", "actor", "What is 1+1?", 0, 0, 2),
            EpisodeTurn("assistant", "actor", text, 0, 2, len(tokens)),
        ],
        [EpisodeCompletion("actor", "stop", 1)],
    )
    trajectory = Trajectory((own,), (completion,), {"actor": reward}, {"format": reward / 2})
    return trajectory, told


def group_record(
    number: int,
    rewards: tuple[float, ...] = (1.0, 0.0),
    text: str = "two",
    *,
    accepted: bool = True,
    length: int = 6,
) -> GroupRecord:
    """A group as the dataflow stores it."""
    episodes = [
        episode(reward, f"{text} {index}", [number, index, *range(10, 8 + length)])
        for index, reward in enumerate(rewards)
    ]
    group = Group(f"train-{number}", f"p{number}", tuple(t for t, _ in episodes))
    body = encode_group(group, "raas-0", episodes=[told for _, told in episodes])
    verdict = StoredVerdict("actor", *(() if accepted else ("dynamic_sampling", "all equal")))
    return GroupRecord(
        number=number,
        group=group.task,
        time_s=1000.0 + number,
        raas="raas-0",
        prompt_id=group.prompt_id,
        prompt_data={"answer": "2"},
        accepted=accepted,
        trajectories=trajectories(ReceivedGroup(body)),
        verdicts=[verdict],
        newest={"actor": 4},
        first_trajectory=number * len(rewards) if accepted else -1,
    )


def failure_record(number: int, error: str = "the shell died") -> FailureRecord:
    """A failed attempt."""
    return FailureRecord(
        number, f"train-{number}", 1000.5 + number, "raas-0", f"p{number}", {}, error, "sandbox"
    )


def batch_of(records: list[GroupRecord], step: int) -> Batch:
    """A batch of all sequences of some groups, with advantages and log-probs of the trainer."""
    rows = [
        (record, index, stored)
        for record in records
        for index, trajectory in enumerate(record.trajectories)
        for stored in trajectory.sequences
    ]

    def joined(column: str) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
        return np.concatenate([getattr(stored, column) for _, _, stored in rows])

    def per_row(values: list[float], dtype: type) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
        return np.array(values, dtype)

    logprobs = joined("logprobs")
    return Batch(
        id=f"actor-{step - 1:06d}",
        policy="actor",
        version=step + 3,
        lengths=per_row([len(stored.tokens) for _, _, stored in rows], np.int32),
        tokens=joined("tokens"),
        loss_mask=joined("loss_mask"),
        logprobs=logprobs,
        versions=joined("versions"),
        rewards=per_row([stored.reward for _, _, stored in rows], np.float32),
        group=per_row([record.number for record, _, _ in rows], np.int64),
        trajectory=per_row([r.first_trajectory + i for r, i, _ in rows], np.int64),
        group_size=per_row([2 for _ in rows], np.int32),
        group_mean=per_row([0.5 for _ in rows], np.float32),
        group_std=per_row([0.7 for _ in rows], np.float32),
        proximal=logprobs - np.float32(0.25),
        advantages=np.arange(len(logprobs), dtype=np.float32),
    )


def write(run: Path, writer: str, *records: Record, max_bytes: int = 1 << 24) -> SegmentWriter:
    """Write records in a segment of their own."""
    segments = SegmentWriter(run / FOLDER, writer, max_bytes)
    for record in records:
        assert segments.append(line_of(record), encode(record))
    segments.close()
    return segments


def a_run(run: Path) -> list[GroupRecord]:
    """A run of one update, with groups that were trained on, rejected, and failed."""
    groups = [group_record(1), group_record(4, (0.25, 0.75), "four"), group_record(7, (1.0, 1.0))]
    rejected = group_record(9, (0.0, 0.0), accepted=False)
    write(run, "dataflow", *groups, rejected, failure_record(10))
    update = update_record(batch_of(groups[:2], 5), range(4), 5, 2000.0)
    write(run, "trainer-actor", update)
    return groups
