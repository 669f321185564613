"""Rollouts in the folder of a run, of made-up numbers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import numpy as np

from astraflow_runtime.rollouts.building import line_of
from astraflow_runtime.rollouts.records import (
    FailureRecord,
    GroupRecord,
    Record,
    StoredSequence,
    StoredTrajectory,
    StoredTurn,
    StoredVerdict,
    TrainedRow,
    UpdateRecord,
    raw,
)
from astraflow_runtime.rollouts.segments import FOLDER, Segment, SegmentWriter, encode

PROMPT = 3
WORDS = ("<pad>", "what", "is", "it", "four", "five", "six", "\n")


def tokenizer(folder: Path) -> Path:
    """A model folder whose tokenizer knows :data:`WORDS`."""
    folder.mkdir()
    model = {
        "type": "WordLevel",
        "vocab": {word: i for i, word in enumerate(WORDS)},
        "unk_token": "<pad>",
    }
    (folder / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "model": model})
    )
    return folder


def sequence(number: int, index: int, length: int, reward: float) -> StoredSequence:
    """``length`` sampled tokens after a prompt of three, by versions 3 and 4."""
    tokens = [1, 2, 3, *(4 + (number + index + n) % 4 for n in range(length))]
    sampled = np.arange(len(tokens)) >= PROMPT
    return StoredSequence(
        policy="solver",
        reward=reward,
        raw_tokens=raw(np.array(tokens), "<i4"),
        raw_loss_mask=raw(sampled, "u1"),
        raw_logprobs=raw(np.where(sampled, -np.arange(len(tokens)) / 7, 0), "<f4"),
        raw_versions=raw(np.where(sampled, 3 + (np.arange(len(tokens)) > 4), -1), "<i4"),
        truncated=reward == 0,
    )


def group(
    number: int, rewards: tuple[float, ...], text: str, length: int, accepted: bool
) -> GroupRecord:
    """A group whose trajectories say ``text``."""
    trajectories = [
        StoredTrajectory(
            {"solver": reward},
            [sequence(number, index, length, reward)],
            {"format": reward / 2},
            [
                StoredTurn("prompt", "solver", "what is it", 0, 0, PROMPT),
                StoredTurn("assistant", "solver", f"{text} {index}", 0, PROMPT, PROMPT + length),
            ],
        )
        for index, reward in enumerate(rewards)
    ]
    verdict = ("", "") if accepted else ("dynamic_sampling", "equal rewards")
    return GroupRecord(
        number, f"train-{number}", 1.7e9 + number, "raas-0", f"p{number}", {"answer": "4", "text": text}, accepted,
        trajectories, [StoredVerdict("solver", *verdict)], {"solver": 4},
        first_trajectory=number * len(rewards) if accepted else -1,
    )  # fmt: skip


def trained(record: GroupRecord, step: int) -> UpdateRecord:
    """An update with all of a group; the trainer finds each token 0.05 nats less likely."""
    rows = []
    for index, trajectory in enumerate(record.trajectories):
        (stored,) = trajectory.sequences
        advantages = np.where(stored.loss_mask, stored.reward - 0.5, 0)
        rows.append(
            TrainedRow(
                record.number,
                record.first_trajectory + index,
                stored.digest,
                stored.reward,
                int(stored.loss_mask.sum()),
                raw(advantages, "<f4"),
                raw(stored.logprobs - 0.05 * stored.loss_mask, "<f4"),
                raw_entropies=raw(0.25 * np.cumsum(stored.loss_mask) * stored.loss_mask, "<f4"),
            )
        )
    return UpdateRecord("solver", f"solver-{step:06d}", step, 4, 1.7e9 + step, rows)


def store(folder: Path, text: str = "it is", length: int = 5) -> None:
    """Three groups in ``folder``, one of them rejected, and one failed attempt; the first is trained on by step 12."""
    first = group(1, (1.0, 0.0, 1.0, 0.0), text, length, True)
    records = [
        first,
        group(2, (0.25, 0.75), text, length, True),
        group(3, (0.0, 0.0), text, length, False),
    ]
    failure = FailureRecord(
        4, "train-4", 1.7e9 + 4, "raas-1", "p4", {}, f"the shell died {text}", "sandbox"
    )
    _write(folder, "dataflow", [*records, failure])
    _write(folder, "trainer-solver", [trained(first, 12)])


def _write(folder: Path, writer: str, records: list[Record]) -> None:
    segments = SegmentWriter(folder / FOLDER, writer, 1 << 24)
    for record in records:
        assert segments.append(line_of(record), encode(record))
    segments.close()


def store_many(folder: Path, groups: int, length: int) -> None:
    """So many groups of eight trajectories of ``length`` tokens in ``folder``. The tokens of four groups, compressed once, are
    those of all, since to compress each would take a minute."""
    hole = b'"trajectories":[]'
    made = []
    for number in range(4):
        rewards = tuple(float(index < 2 * number) for index in range(8))
        record = group(number, rewards, f"it is {number}", length - PROMPT, True)
        begin, end = encode(msgspec.structs.replace(record, trajectories=[])).split(hole)
        whole = encode(record)
        member = gzip.compress(whole[len(begin) : len(whole) - len(end)], 1, mtime=0)
        made.append((record, line_of(record), member))
    segment = Segment("dataflow", 1)
    (folder / FOLDER).mkdir()
    offset = 0
    with (
        segment.data(folder / FOLDER).open("wb") as data,
        segment.index(folder / FOLDER).open("wb") as index,
    ):
        for number in range(groups):
            record, line, member = made[number % len(made)]
            own = {
                "number": number,
                "group": f"train-{number}",
                "time_s": 1.7e9 + number,
                "prompt_id": f"p{number}",
                "first_trajectory": 8 * number,
            }
            begin, end = encode(msgspec.structs.replace(record, trajectories=[], **own)).split(hole)
            stored = gzip.compress(begin, 1, mtime=0) + member + gzip.compress(end, 1, mtime=0)
            data.write(stored)
            placed = msgspec.structs.replace(line, **own, offset=offset, size=len(stored))
            index.write(msgspec.json.encode(placed) + b"\n")
            offset += len(stored)
