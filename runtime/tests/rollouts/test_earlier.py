"""What engines may take drafts from: the stored groups of a prompt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from stored_runs import failure_record, group_record, write

from astraflow_core.errors import WireError
from astraflow_runtime.rollouts.earlier import GROUPS, WAITING, EarlierGroups
from astraflow_runtime.rollouts.records import GroupRecord
from astraflow_runtime.rollouts.segments import FOLDER, Segment
from astraflow_wire.frames import encode_frame
from astraflow_wire.http.drafts import DraftsHeader, decode_drafts, encode_drafts

PLENTY = 1 << 20


def texts(groups: EarlierGroups, prompt: str = "p7", most: int = PLENTY) -> list[list[int]]:
    return [each.tokens.tolist() for each in groups.find(prompt, {"actor": most})]


def changed(record: GroupRecord, **changes: Any) -> GroupRecord:
    """A group with one trajectory of one sequence, which is changed."""
    (trajectory,) = record.trajectories
    (sequence,) = trajectory.sequences
    sequence = msgspec.structs.replace(sequence, **changes)
    trajectory = msgspec.structs.replace(trajectory, sequences=[sequence])
    return msgspec.structs.replace(record, trajectories=[trajectory])


def test_the_groups_of_a_prompt_are_found_while_they_are_written_and_after_a_restart(
    tmp_path: Path,
) -> None:
    groups = EarlierGroups(tmp_path / FOLDER, "dataflow")
    assert texts(groups) == []  # nothing is written yet
    write(tmp_path, "dataflow", group_record(7), group_record(8), failure_record(7))
    write(tmp_path, "trainer-actor", group_record(7, length=9))  # of another writer
    first = [[7, 0, 10, 11, 12, 13], [7, 1, 10, 11, 12, 13]]
    assert texts(groups) == first
    write(tmp_path, "dataflow", group_record(7, (1.0,), length=4))  # a later process
    assert texts(groups) == [*first, [7, 0, 10, 11]]
    assert texts(EarlierGroups(tmp_path / FOLDER, "dataflow")) == [*first, [7, 0, 10, 11]]
    found = groups.find("p7", {"actor": PLENTY})
    assert {each.policy for each in found} == {"actor"}
    assert found[0].sampled.tolist() == [False] * 2 + [True] * 4


def test_the_newest_groups_fill_the_bytes_and_the_last_sequence_is_cut(tmp_path: Path) -> None:
    records = [group_record(7, (1.0,), length=length) for length in range(4, 6 + GROUPS)]
    write(tmp_path, "dataflow", *records)
    groups = EarlierGroups(tmp_path / FOLDER, "dataflow")
    assert [len(text) for text in texts(groups)] == list(range(6, 6 + GROUPS))
    assert [len(text) for text in texts(groups, most=5 * 20)] == [3, 8, 9]  # 20 tokens
    assert texts(groups, most=4) == []


def test_what_is_deleted_or_damaged_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "dataflow", group_record(7, (1.0,)))
    write(tmp_path, "dataflow", group_record(7, (1.0,), length=5))
    write(tmp_path, "dataflow", group_record(7, (1.0,), length=4))
    groups = EarlierGroups(tmp_path / FOLDER, "dataflow")
    folder = tmp_path / FOLDER
    Segment("dataflow", 2).data(folder).write_bytes(b"x" * 4000)
    assert [len(text) for text in texts(groups)] == [6, 4]
    with Segment("dataflow", 3).index(folder).open("a") as index:
        index.write('{"kind":"of another version"}\n')
    assert [len(text) for text in texts(groups)] == [6, 4]
    for file in (Segment("dataflow", 1).index(folder), Segment("dataflow", 1).data(folder)):
        file.unlink()
    assert [len(text) for text in texts(groups)] == [4]
    assert texts(groups, "another") == []


def test_each_policy_has_its_own_bytes(tmp_path: Path) -> None:
    other = changed(group_record(7, (1.0,), length=5), policy="verifier")
    write(tmp_path, "dataflow", group_record(7, (1.0,)), other)
    groups = EarlierGroups(tmp_path / FOLDER, "dataflow")

    def lengths(**most_bytes: int) -> list[tuple[str, int]]:
        return [(each.policy, len(each.tokens)) for each in groups.find("p7", most_bytes)]

    assert lengths(actor=20, verifier=PLENTY) == [("actor", 4), ("verifier", 5)]
    assert lengths(actor=PLENTY) == [("actor", 6)]
    assert lengths(actor=0) == lengths() == []


def test_nothing_waits_for_what_is_not_a_file(tmp_path: Path) -> None:
    write(tmp_path, "dataflow", group_record(7, (1.0,), length=5))
    write(tmp_path, "dataflow", group_record(7, (1.0,)))
    groups = EarlierGroups(tmp_path / FOLDER, "dataflow")
    assert [len(text) for text in texts(groups)] == [5, 6]
    data = Segment("dataflow", 2).data(tmp_path / FOLDER)
    data.unlink()
    os.mkfifo(data)
    os.mkfifo(Segment("dataflow", 3).index(tmp_path / FOLDER))
    assert [len(text) for text in texts(groups)] == [5]


def test_a_group_with_half_a_token_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "dataflow", group_record(7, (1.0,)))
    broken = changed(group_record(7, (1.0,)), raw_tokens=bytes(11))
    monkeypatch.setattr("astraflow_runtime.rollouts.earlier.read", lambda *_: broken)
    assert texts(EarlierGroups(tmp_path / FOLDER, "dataflow")) == []


def test_calls_beyond_those_that_may_wait_find_nothing(tmp_path: Path) -> None:
    write(tmp_path, "dataflow", group_record(7))
    groups = EarlierGroups(tmp_path / FOLDER, "dataflow")
    for _ in range(WAITING):
        assert groups._calls.acquire(blocking=False)
    assert texts(groups) == []
    groups._calls.release()
    assert len(texts(groups)) == 2


def test_a_reply_is_a_frame_that_a_raas_can_check(tmp_path: Path) -> None:
    write(tmp_path, "dataflow", group_record(7, length=9))
    found = EarlierGroups(tmp_path / FOLDER, "dataflow").find("p7", {"actor": PLENTY})
    again = decode_drafts(encode_drafts(found))
    for one, other in zip(found, again, strict=True):
        assert one.policy == other.policy
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.sampled.tolist() == other.sampled.tolist()
    assert decode_drafts(encode_drafts([])) == []
    header = DraftsHeader(policies=["a"], lengths=[2, 1])
    with pytest.raises(WireError, match="1 policies of 2 sequences"):
        decode_drafts(encode_frame(header, [np.zeros(3, np.int32), np.zeros(3, np.uint8)]))
    with pytest.raises(WireError, match="8 bytes; 12 were expected"):
        header = DraftsHeader(policies=["a", "a"], lengths=[2, 1])
        decode_drafts(encode_frame(header, [np.zeros(2, np.int32), np.zeros(3, np.uint8)]))
