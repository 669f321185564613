"""Reading a store: its bound, its joins, what a killed run leaves, and filters."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_runs import a_run, batch_of, failure_record, group_record, write

from astraflow_core.errors import UserError
from astraflow_runtime.rollouts.building import line_of, tools_called, update_record
from astraflow_runtime.rollouts.filters import Filter
from astraflow_runtime.rollouts.reader import RolloutReader
from astraflow_runtime.rollouts.segments import (
    FOLDER,
    Segment,
    SegmentWriter,
    decode,
    encode,
    segments,
)


def names(rollouts: RolloutReader, where: str) -> list[tuple[str, int]]:
    return [(entry.group, entry.index) for entry in rollouts.entries(where)]


def test_a_group_comes_back_with_what_was_trained_on_it(tmp_path: Path) -> None:
    groups = a_run(tmp_path)
    rollouts = RolloutReader(tmp_path)
    batch = batch_of(groups[:2], 5)
    row = 0
    for record in groups[:2]:
        loaded = rollouts.group(record.group)
        assert loaded.record == record
        for trajectory in loaded.trajectories:
            ((trained,),) = trajectory.trained
            (stored,) = trajectory.stored.sequences
            span = slice(batch.offsets[row], batch.offsets[row + 1])
            assert (trained.step, trained.batch, trained.version) == (5, "actor-000004", 8)
            assert trained.row.advantages.tolist() == batch.advantages[span].tolist()  # type: ignore[index]
            assert trained.row.trainer_logprobs is not None and batch.proximal is not None
            assert trained.row.trainer_logprobs.tolist() == batch.proximal[span].tolist()
            assert trained.row.reference_logprobs is None
            for column in ("tokens", "loss_mask", "logprobs", "versions"):
                np.testing.assert_array_equal(getattr(stored, column), getattr(batch, column)[span])
            row += 1
    assert rollouts.group(7).trajectories[0].trained == ((),)
    best, worst = rollouts.group("train-4").best_and_worst()
    assert (best.entry.index, worst.entry.index) == (1, 0)
    completion = best.stored.completions[0]  # type: ignore[index]
    assert (completion.text, completion.tokens.tolist()) == ("four 1", [10, 11, 12, 13])


def test_other_programs_read_the_records_as_json_lines(tmp_path: Path) -> None:
    a_run(tmp_path)
    (segment,) = segments(tmp_path / FOLDER, "dataflow")
    with gzip.open(segment.data(tmp_path / FOLDER), "rt", encoding="utf-8") as file:
        first, *rest = map(json.loads, file)
    assert first["trajectories"][0]["turns"][1]["text"] == "two 0"
    assert [each["kind"] for each in rest] == ["group", "group", "group", "failure"]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("step=5", [("train-1", 0), ("train-1", 1), ("train-4", 0), ("train-4", 1)]),
        ("step=5 reward>0.5", [("train-1", 0), ("train-4", 1)]),
        ("outcome=waiting and policy=actor", [("train-7", 0), ("train-7", 1)]),
        ("outcome=rejected error~EQUAL", [("train-9", 0), ("train-9", 1)]),
        ("outcome=failed", [("train-10", -1)]),
        ("error=sandbox", [("train-10", -1)]),
        ("text~'four 1'", [("train-4", 1)]),
        ('text~"shell died"', [("train-10", -1)]),
        ("group=train-1 length>=6 sampled=4 turns=2 version>3", [("train-1", 0), ("train-1", 1)]),
        ("length>6", []),
        ("prompt!=p1 reward=0.25", [("train-4", 0)]),
    ],
)
def test_filters(tmp_path: Path, where: str, found: list[tuple[str, int]]) -> None:
    a_run(tmp_path)
    assert names(RolloutReader(tmp_path), where) == found


@pytest.mark.parametrize(
    "where", ["text~wo", "text~WO text~1", "reward>0.5 text~o", "text~absent", "text~died", ""]
)
def test_a_search_reads_for_its_time_and_continues(tmp_path: Path, where: str) -> None:
    a_run(tmp_path)
    rollouts = RolloutReader(tmp_path)
    whole = list(rollouts.entries(where, newest_first=True))
    unread = []
    for _ in range(6):
        found = rollouts.search(where, most=100, for_s=0)
        unread.append(found.unread)
        if not found.unread:
            break
    assert found.entries == whole and not found.more and found.damaged == 0
    assert unread == sorted(set(unread), reverse=True) and unread[-1] == 0
    assert len(unread) > 1 or not where
    for segment in segments(tmp_path / FOLDER, "dataflow"):
        segment.data(tmp_path / FOLDER).write_bytes(b"")  # nothing is read twice
    assert rollouts.search(where, most=100, for_s=0).entries == whole
    if whole:
        assert rollouts.search(where, most=len(whole) - 1, for_s=0).more


def damage_first_record(run: Path) -> Segment:
    """Returns the only segment of the dataflow, whose record it is in."""
    (segment,) = segments(run / FOLDER, "dataflow")
    content = bytearray(segment.data(run / FOLDER).read_bytes())
    content[60] ^= 0xFF
    segment.data(run / FOLDER).write_bytes(content)
    return segment


def test_a_search_passes_over_what_is_damaged_and_what_is_gone(tmp_path: Path) -> None:
    a_run(tmp_path)
    segment = damage_first_record(tmp_path)
    rollouts = RolloutReader(tmp_path)
    found = rollouts.search("text~o group~train", most=100, for_s=20)
    assert found.damaged == 2 and found.unread == 0
    assert {entry.group for entry in found.entries} == {"train-4", "train-7", "train-9"}
    write(tmp_path, "dataflow", group_record(20))
    segment.index(tmp_path / FOLDER).unlink()
    rollouts.refresh()
    found = rollouts.search("text~o", most=100, for_s=20)
    assert found.damaged == 0 and {entry.group for entry in found.entries} == {"train-20"}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("rewrad<1", "no key 'rewrad'; did you mean 'reward'"),
        ("reward<low", "reward is compared with a number, not 'low'"),
        ("policy<actor", "policy takes = != ~, not '<'"),
        ("reward", "is not a term; expected terms KEY OPERATOR VALUE"),
        ("reward<1 nonsense", "'nonsense' is not a term"),
    ],
)
def test_a_wrong_filter_is_explained(where: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Filter.parse(where)


def test_an_update_that_is_made_again_counts_once(tmp_path: Path) -> None:
    groups = a_run(tmp_path)
    again = update_record(batch_of(groups[:1], 5), range(2), 5, 3000.0)
    write(tmp_path, "trainer-actor", again)
    rollouts = RolloutReader(tmp_path)
    assert [len(each) for each in rollouts.group(1).trajectories[0].trained] == [1]
    assert rollouts.group(4).trajectories[0].entry.outcome == "waiting"


@given(cut=st.integers(0, 4000), of_index=st.booleans())
@settings(max_examples=40)
def test_whatever_a_killed_run_leaves_is_read_up_to_its_last_whole_record(
    tmp_path_factory: pytest.TempPathFactory, cut: int, of_index: bool
) -> None:
    run = tmp_path_factory.mktemp("run")
    a_run(run)
    folder = run / FOLDER
    (segment,) = segments(folder, "dataflow")
    whole = RolloutReader(run).group_names
    file = segment.index(folder) if of_index else segment.data(folder)
    content = file.read_bytes()
    file.write_bytes(content[: max(0, len(content) - cut)])
    rollouts = RolloutReader(run)
    left = rollouts.group_names
    assert left == whole[: len(left)]
    for name in left:
        rollouts.group(name)
    # The next process begins a segment of its own.
    write(run, "dataflow", group_record(20))
    rollouts.refresh()
    assert rollouts.group_names == [*left, "train-20"]


def test_of_a_group_that_a_batch_has_in_part_the_rest_waits(tmp_path: Path) -> None:
    group = group_record(1)
    write(tmp_path, "dataflow", group)
    write(tmp_path, "trainer-actor", update_record(batch_of([group], 2), [1], 2, 0.0))
    rollouts = RolloutReader(tmp_path)
    assert [entry.outcome for entry in rollouts.entries()] == ["waiting", "trained"]
    assert [len(each.trained[0]) for each in rollouts.group(1).trajectories] == [0, 1]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    a_run(tmp_path)
    damage_first_record(tmp_path)
    with pytest.raises(UserError, match="the record at byte 0 is damaged"):
        RolloutReader(tmp_path).group("train-1")


def test_the_bound_holds_and_the_newest_stay(tmp_path: Path) -> None:
    bound = 40_000
    folder = tmp_path / FOLDER
    writer = SegmentWriter(folder, "dataflow", bound)
    for number in range(200):
        record = group_record(number, length=60)
        assert writer.append(line_of(record), encode(record))
        assert sum(file.stat().st_size for file in folder.iterdir()) <= bound
    writer.close()
    rollouts = RolloutReader(tmp_path)
    kept = rollouts.group_names
    assert kept == [f"train-{number}" for number in range(200 - len(kept), 200)]
    assert len(kept) > 20
    huge = group_record(300, length=20_000)
    assert not writer.append(line_of(huge), encode(huge))
    # A process that comes after holds the same bound over what it finds.
    write(
        tmp_path,
        "dataflow",
        *(group_record(n, length=60) for n in range(400, 440)),
        max_bytes=bound,
    )
    assert sum(file.stat().st_size for file in folder.iterdir()) <= bound
    rollouts.refresh()
    assert "train-439" in rollouts.group_names and kept[0] not in rollouts.group_names
    with pytest.raises(UserError, match=f"group {kept[0]} is not stored"):
        rollouts.group(kept[0])


def test_following_prints_each_rollout_once(tmp_path: Path) -> None:
    a_run(tmp_path)
    rollouts = RolloutReader(tmp_path)
    later = threading.Timer(
        0.05, write, (tmp_path, "dataflow", group_record(11), failure_record(12))
    )
    later.start()
    seen = [(e.group, e.index) for e in rollouts.follow("reward>0.5", for_s=0.3, poll_s=0.02)]
    later.join()
    assert seen == [("train-11", 0)]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(
    text=TEXTS,
    rewards=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=3).map(tuple),
    number=st.integers(0, 2**31 - 2),
)
def test_a_record_survives_its_file(text: str, rewards: tuple[float, ...], number: int) -> None:
    record = group_record(number, rewards, text)
    assert decode(encode(record)) == record
    failed = failure_record(number, text)
    assert decode(encode(failed)) == failed


def test_a_run_without_a_store_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no rollouts .* groups_per_step = 0"):
        RolloutReader(tmp_path)


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        (
            'so <tool_call>\n{"name": "search", "arguments": {"name": "x"}}\n</tool_call>',
            ["search"],
        ),
        ("<function=run_sql>\n<parameter=q>1</parameter></function>", ["run_sql"]),
        ('I have the "name": "search" in mind', []),
    ],
)
def test_names_of_called_tools(text: str, tools: list[str]) -> None:
    assert tools_called([text]) == tools
