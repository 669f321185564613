"""Records from what the services have: a pushed group, a prepared batch; and the line of the index for each."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from astraflow_core.types import Batch
from astraflow_runtime.rollouts.records import (
    FailureLine,
    FailureRecord,
    GroupLine,
    GroupRecord,
    IndexLine,
    Record,
    StoredCompletion,
    StoredSequence,
    StoredTrajectory,
    StoredTurn,
    TrainedRow,
    TrajectoryLine,
    UpdateLine,
    UpdateRecord,
    digest,
    raw,
)
from astraflow_wire.groups import EpisodeText, ReceivedGroup
from astraflow_wire.limits import cut

LINE_TEXT = 500
"""Characters of a reason, an error or a prompt's id in the index, which a reader holds in memory."""
MOST_TOOLS = 16
_CALLS = re.compile(
    r"""<tool_call>\s*\{[^{}]*?"name"\s*:\s*"([\w.-]{1,64})"|<function=([\w.-]{1,64})>|<invoke name="([\w.-]{1,64})">"""
)
"""How models write a call of a tool: Hermes and Qwen, Qwen3-Coder and Llama, and those with XML of their own."""


def trajectories(received: ReceivedGroup) -> list[StoredTrajectory]:
    """The trajectories of a pushed group."""
    header = received.header
    sequences: list[list[StoredSequence]] = [[] for _ in range(header.trajectories)]
    for index, each in enumerate(header.sequences):
        sequences[each.trajectory].append(_sequence(received, index))
    metrics: list[dict[str, float]] = [{} for _ in sequences]
    for name, values in header.metrics.items():
        for figures, value in zip(metrics, values, strict=True):
            if value is not None:
                figures[name] = value
    told = len(header.episodes) == header.trajectories
    return [
        _trajectory(own, metrics[index], header.episodes[index] if told else None)
        for index, own in enumerate(sequences)
    ]


def _trajectory(
    sequences: list[StoredSequence], metrics: dict[str, float], text: EpisodeText | None
) -> StoredTrajectory:
    rewards: dict[str, float] = {}
    for each in sequences:
        if each.own_reward:
            rewards[each.policy] = rewards.get(each.policy, 0.0) + each.reward
    for each in sequences:
        if not each.own_reward:
            rewards[each.policy] = each.reward
    if text is None or not text.turns:
        return StoredTrajectory(rewards, sequences, metrics)
    turns = [
        StoredTurn(t.role, t.policy, t.text, t.sequence, t.start, t.end)
        for t in text.turns
        if t.sequence < len(sequences)
    ]
    completions = []
    for completion in text.completions:
        tokens, said = completion.tokens, completion.text
        if 0 <= completion.turn < len(turns):
            turn = turns[completion.turn]
            tokens = sequences[turn.sequence].raw_tokens[4 * turn.start : 4 * turn.end]
            said = turn.text
        completions.append(
            StoredCompletion(completion.policy, said, completion.finish_reason, tokens)
        )
    return StoredTrajectory(rewards, sequences, metrics, turns, completions)


def _sequence(received: ReceivedGroup, index: int) -> StoredSequence:
    header = received.header.sequences[index]
    start, end = int(received.offsets[index]), int(received.offsets[index + 1])
    given = {name: values.between(start, end) for name, values in received.sparse.items()}
    return StoredSequence(
        policy=header.policy,
        reward=header.reward,
        raw_tokens=raw(received.tokens[start:end], "<i4"),
        raw_loss_mask=raw(received.loss_mask[start:end], "u1"),
        raw_logprobs=raw(received.logprobs[start:end], "<f4"),
        raw_versions=raw(received.versions[start:end], "<i4"),
        own_reward=header.own_reward,
        truncated=header.truncated,
        sparse={
            name: list(zip(part.positions.tolist(), part.values.tolist(), strict=True))
            for name, part in given.items()
            if len(part.positions)
        },
    )


def update_record(
    batch: Batch,
    rows: Iterable[int],
    step: int,
    time_s: float,
    entropies: np.ndarray[tuple[int], np.dtype[np.float32]] | None = None,
) -> UpdateRecord:
    """What an update makes of the ``rows`` of its batch, which has its advantages. Numbers below zero are of rows that
    another policy sampled (:class:`astraflow_core.types.Batch`)."""

    def column(
        values: np.ndarray[tuple[int], np.dtype[np.float32]] | None, row: int
    ) -> bytes | None:
        if values is None:
            return None
        return raw(values[batch.offsets[row] : batch.offsets[row + 1]], "<f4")

    found = []
    for row in rows:
        group, trajectory = int(batch.group[row]), int(batch.trajectory[row])
        span = slice(batch.offsets[row], batch.offsets[row + 1])
        found.append(
            TrainedRow(
                number=_own(group),
                trajectory=_own(trajectory),
                digest=digest(raw(batch.tokens[span], "<i4")),
                reward=float(batch.rewards[row]),
                trained=int(np.count_nonzero(batch.loss_mask[span])),
                raw_advantages=column(batch.advantages, row) or b"",
                raw_trainer_logprobs=column(batch.proximal, row),
                raw_reference_logprobs=column(batch.reference, row),
                borrowed=group < 0,
                raw_entropies=column(entropies, row),
            )
        )
    return UpdateRecord(batch.policy, batch.id, step, batch.version, time_s, found)


def _own(number: int) -> int:
    """A number of a group or trajectory in a batch as the policy that sampled it has it."""
    return number if number >= 0 else -1 - number


# -- the index -----------------------------------------------------------------------------------


def line_of(record: Record) -> IndexLine:
    """What the index says of a record, but for its place."""
    if isinstance(record, UpdateRecord):
        rows = [(row.number, row.trajectory) for row in record.rows]
        return UpdateLine(
            record.policy, record.batch, record.step, record.version, record.time_s, rows
        )
    prompt = cut(record.prompt_id, LINE_TEXT)
    if isinstance(record, FailureRecord):
        return FailureLine(
            number=record.number,
            group=record.group,
            time_s=record.time_s,
            raas=record.raas,
            prompt_id=prompt,
            error=cut(record.error, LINE_TEXT),
            environment=record.environment,
        )
    return GroupLine(
        number=record.number,
        group=record.group,
        time_s=record.time_s,
        raas=record.raas,
        prompt_id=prompt,
        accepted=record.accepted,
        reason="" if record.accepted else cut(_why(record), LINE_TEXT),
        trajectories=[_trajectory_line(each) for each in record.trajectories],
        first_trajectory=record.first_trajectory,
    )


def _why(record: GroupRecord) -> str:
    reasons = [
        f"{each.by}: {each.reason}" if each.by else each.reason
        for each in record.verdicts
        if each.reason
    ]
    return "; ".join(dict.fromkeys(reasons)) or "no trajectory"


def _trajectory_line(trajectory: StoredTrajectory) -> TrajectoryLine:
    versions = [each.versions[each.versions >= 0] for each in trajectory.sequences]
    some = [each for each in versions if each.size]
    turns = trajectory.turns or []
    return TrajectoryLine(
        rewards=trajectory.rewards,
        tokens=sum(len(each.tokens) for each in trajectory.sequences),
        sampled=sum(each.size for each in versions),
        turns=len(turns),
        truncated=any(each.truncated for each in trajectory.sequences),
        versions=(
            (int(min(v.min() for v in some)), int(max(v.max() for v in some))) if some else (-1, -1)
        ),
        tools=tools_called(turn.text for turn in turns if turn.role == "assistant"),
    )


def tools_called(texts: Iterable[str]) -> list[str]:
    """Names of the tools that sampled texts call, each once, in order."""
    calls = ("".join(groups) for text in texts for groups in _CALLS.findall(text))
    return list(dict.fromkeys(calls))[:MOST_TOOLS]
