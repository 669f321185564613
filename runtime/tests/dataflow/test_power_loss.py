"""What power loss leaves of a journal: everything that was flushed, and of the rest any pieces."""

from __future__ import annotations

import itertools
import json
import shutil
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow_core.errors import RunFailed
from astraflow_runtime.dataflow.journal.entries import PromptsConsumed
from astraflow_runtime.dataflow.journal.entry_log import ENTRIES, read_records
from astraflow_runtime.dataflow.journal.flushed import FLUSHED, FlushedFile, read_flushed
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.journal.steplog import StepLog
from astraflow_runtime.dataflow.replay import JournalReplay
from astraflow_wire.messages import ReleaseBatches

BODIES = "bodies-00000000.bin"
bounded = settings(max_examples=150, deadline=None)


@pytest.fixture
def trained(bench, config, tmp_path):
    """A run of three updates that was killed; its journal was flushed after the second. Checkpoints are due at
    each, so that all batches are kept."""
    b = bench(config(checkpoint__every=1, run__max_staleness=4), journal=tmp_path / "journal")
    b.begin()
    for update in range(3):
        b.update(update)
        if update == 1:
            b.flow.training.release(ReleaseBatches(policy="solver", updates=1))
            b.state.records.sync()
    shutil.copytree(b.journal, tmp_path / "killed")
    return b


class Copies:
    """Copies of a killed run's journal, each as another power loss leaves it."""

    def __init__(self, bench, folder):
        self.killed, self.bench, self._folder = folder / "killed", bench, folder
        self.flushed = read_flushed(self.killed)
        self.records = list(read_records(self.killed / ENTRIES))
        self.size = (self.killed / ENTRIES).stat().st_size
        self._number = itertools.count()

    def damaged(self, name, change):
        copy = self._folder / f"copy-{next(self._number)}"
        shutil.copytree(self.killed, copy)
        content = bytearray((copy / name).read_bytes())
        change(content)
        (copy / name).write_bytes(content)
        return copy

    def check(self, copy, least_end):
        """The journal continues from a sound beginning that reaches to byte ``least_end`` at least; returns where it
        was cut."""
        journal = Journal(copy, lambda: 0.0)
        read = [entry for _, entry in journal.entries()]
        end = self.records[len(read) - 1][2]
        assert read == [entry for _, entry, _ in self.records[: len(read)]]
        assert end >= max(self.flushed.entries, least_end)
        journal.write(PromptsConsumed(cursor=99))
        journal.close()
        again = Journal(copy, lambda: 0.0)
        assert [entry for _, entry in again.entries()] == [*read, PromptsConsumed(cursor=99)]
        again.close()
        return end

    def restore(self, copy):
        """The dataflow that continues from it."""
        journal, flow = Journal(copy, lambda: 0.0), self.bench.build()
        JournalReplay(flow, journal.reader, partial(self.bench.time.__setitem__, 0)).run(
            journal.entries()
        )
        journal.close()
        return flow

    def whole_before(self, position):
        """Where the last record ends that power loss behind ``position`` leaves whole."""
        return max((end for _, _, end in self.records if end <= position), default=0)


@pytest.fixture
def copies(trained, tmp_path):
    return Copies(trained, tmp_path)


@pytest.mark.slow
def test_zeros_holes_and_cuts_behind_the_flush(copies):
    first, size = copies.flushed.entries, copies.size
    assert 0 < first < size

    @bounded
    @given(
        st.integers(first, size), st.integers(1, 4096), st.sampled_from(["zeros", "hole", "cut"])
    )
    def anywhere(position, length, what):
        def change(content):
            if what == "cut":
                del content[position:]
            else:
                end = size if what == "zeros" else min(size, position + length)
                content[position:end] = bytes(end - position)

        copies.check(copies.damaged(ENTRIES, change), copies.whole_before(position))

    anywhere()


def test_bodies_shorter_than_the_entries_say(copies):
    most = (copies.killed / BODIES).stat().st_size
    assert 0 < copies.flushed.bodies < most

    @settings(bounded, max_examples=30)
    @given(st.integers(copies.flushed.bodies, most), st.booleans())
    def anywhere(position, zeros):
        def change(content):
            rest = len(content) - position
            del content[position:]
            content.extend(bytes(rest) if zeros else b"")

        end = copies.check(copies.damaged(BODIES, change), 0)
        places = [(entry.body, e) for _, entry, e in copies.records if getattr(entry, "body", None)]
        lost = [e for place, e in places if place.offset + place.size > position]
        assert (end < min(lost)) if lost else end == copies.size

    anywhere()


def test_the_dataflow_continues_from_what_is_left(copies):
    ends = [end for _, _, end in copies.records if end >= copies.flushed.entries]
    for end in ends[::3]:
        flow = copies.restore(
            copies.damaged(ENTRIES, lambda c, end=end: c.__delitem__(slice(end + 9, None)))
        )
        assert 2 <= flow.state.streams["solver"].updates <= 3
        assert flow.status().invariants_ok


def test_what_was_flushed_and_is_damaged_is_named(copies):
    first = copies.flushed.entries
    for position in (3, first // 2, first - 1):

        def flip(content, position=position):
            content[position] ^= 1

        begin = copies.whole_before(position)
        with pytest.raises(
            RunFailed,
            match=rf"entries\.log: the record at byte {begin} is damaged, and {first} bytes",
        ):
            list(Journal(copies.damaged(ENTRIES, flip), lambda: 0.0).entries())
        short = copies.damaged(
            ENTRIES, lambda content, position=position: content.__delitem__(slice(position, None))
        )
        with pytest.raises(
            RunFailed, match=rf"byte {begin} is cut off; the file has {position} bytes"
        ):
            list(Journal(short, lambda: 0.0).entries())
    cut = copies.flushed.bodies - 1
    short = copies.damaged(BODIES, lambda content: content.__delitem__(slice(cut, None)))
    with pytest.raises(
        RunFailed, match=rf"{BODIES} ends at byte {cut}, and {cut + 1} bytes had been flushed"
    ):
        Journal(short, lambda: 0.0)


def test_a_mark_is_whole_whenever_power_is_lost(tmp_path):
    """Each slot is written while the other one holds; an incomplete write leaves the mark before."""
    file = FlushedFile(tmp_path)
    marks = [read_flushed(tmp_path)]
    for number in range(1, 6):
        before = (tmp_path / FLUSHED).read_bytes()
        marks.append(type(marks[0])(entries=10 * number, segment=number, bodies=7))
        file.write(marks[-1])
        after = (tmp_path / FLUSHED).read_bytes()
        changed = [
            at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new
        ]
        for cut in range(changed[0], changed[-1] + 1):
            (tmp_path / FLUSHED).write_bytes(after[:cut] + before[cut:])
            assert read_flushed(tmp_path) in marks[-2:]
        (tmp_path / FLUSHED).write_bytes(after)
        assert read_flushed(tmp_path) == marks[-1]
        file = FlushedFile(tmp_path)


def test_a_flush_while_entries_are_kept_notes_nothing(tmp_path):
    """At that time only a part of a record may be on the disk."""
    journal = Journal(tmp_path, lambda: 0.0)
    journal.write(PromptsConsumed(cursor=1))
    journal.sync()
    mark = read_flushed(tmp_path)
    journal._entries.hold(b"kept")
    journal.sync()
    assert read_flushed(tmp_path) == mark
    journal.write_held()
    journal.sync()
    assert read_flushed(tmp_path).entries == mark.entries + 4


def test_steps_that_the_journal_lost_are_reported_once(tmp_path):
    """They are made again, as other steps perhaps; their earlier lines go."""
    path = tmp_path / "metrics.jsonl"
    before = StepLog(path)
    for step in range(5):
        before.write({"step": step, "made": "before"})
    before.close()
    path.write_bytes(path.read_bytes() + b'{"step": 5, "ma')
    now = StepLog(path)
    for step in range(3):  # the journal has three
        now.write({"step": step, "made": "repeated"})
    now.resume()
    for step in range(3, 6):
        now.write({"step": step, "made": "again"})
    now.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(6))
    assert [line["made"] for line in lines] == ["before"] * 3 + ["again"] * 3


@pytest.mark.parametrize("told", [0, 2, 4])
def test_lines_with_a_hole_are_written_anew(tmp_path, told):
    path = tmp_path / "metrics.jsonl"
    before = StepLog(path)
    for step in range(4):
        before.write({"step": step})
    before.close()
    content = bytearray(path.read_bytes())
    second = content.index(b"\n") + 5
    content[second : second + 10] = bytes(10)
    path.write_bytes(content)
    now = StepLog(path)
    for step in range(told):
        now.write({"step": step})
    now.resume()
    now.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(told))
