"""The reader of the journal: its end, the files that it refuses, and the calls of its listeners."""

from __future__ import annotations

import tracemalloc
from functools import partial

import msgspec
import pytest

from astraflow_core.errors import RunFailed, UserError
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    Leased,
    Overdue,
    Pushed,
)
from astraflow_runtime.dataflow.journal.entry_log import ENTRIES, encode_record
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_runtime.dataflow.lease_history import LeaseHistory
from astraflow_runtime.dataflow.replay import JournalReplay


class Recorded:
    """Records the entries that it gets, in a list that listeners share."""

    def __init__(self, name="", notes=None):
        self.name, self.notes = name, [] if notes is None else notes

    def on_entry(self, at_s, entry):
        self.notes.append((self.name, at_s, type(entry).__name__))


def leased(number):
    return Leased(task=f"train-{number}", raas="r0", capacity=4)


def written(path, *entries):
    records = [b"".join(encode_record(entry, float(at))) for at, entry in enumerate(entries)]
    (path / ENTRIES).write_bytes(b"".join(records))
    return records


def test_listeners_get_an_entry_in_their_order_before_the_next_is_read(tmp_path):
    written(tmp_path, leased(0), Overdue(task="train-0", reason="late"))
    notes = []
    assert JournalReader(tmp_path).feed(Recorded("a", notes), Recorded("b", notes)) == 2
    assert notes == [
        ("a", 0.0, "Leased"), ("b", 0.0, "Leased"), ("a", 1.0, "Overdue"), ("b", 1.0, "Overdue"),
    ]  # fmt: skip


@pytest.mark.parametrize("kept", [0, 1, 5, 23, 24, 25, -1])
def test_what_is_written_just_now_ends_the_log(tmp_path, kept):
    """Also between head and content: a reader never waits, and reads the entry when it is called again."""
    records = written(tmp_path, leased(0), leased(1))
    (tmp_path / ENTRIES).write_bytes(records[0] + records[1][:kept])
    reader = JournalReader(tmp_path)
    assert [entry.task for _, entry in reader.entries()] == ["train-0"]
    (tmp_path / ENTRIES).write_bytes(b"".join(records))
    assert [entry.task for _, entry in reader.entries()] == ["train-0", "train-1"]
    assert list(reader.records())[1].end == len(records[0] + records[1])
    (rest,) = reader.records(len(records[0]))
    assert (rest.entry.task, rest.end) == ("train-1", len(records[0] + records[1]))
    assert list(reader.records(rest.end)) == []


def test_zeros_behind_the_log_end_it_and_nothing_after_them_is_believed(tmp_path):
    records = written(tmp_path, leased(0), leased(1))
    (tmp_path / ENTRIES).write_bytes(records[0] + bytes(4096) + records[1])
    assert JournalReader(tmp_path).feed() == 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"type": "dreamt", "task": "train-0"}, "dreamt"),
        ({"type": "leased", "task": "train-0"}, "raas"),
        ({"type": "leased", "task": "train-0", "raas": "r0", "capacity": -1}, "capacity"),
    ],
)
def test_an_entry_of_another_version_is_refused_with_its_place(tmp_path, fields, problem):
    whole = written(tmp_path, leased(0))[0]
    kind = msgspec.defstruct("Other", [(name, object) for name in fields])
    other = b"".join(encode_record(kind(**fields), 1.0))
    (tmp_path / ENTRIES).write_bytes(whole + other)
    listener = Recorded()
    with pytest.raises(RunFailed) as caught:
        JournalReader(tmp_path).feed(listener)
    assert str(tmp_path / ENTRIES) in str(caught.value)
    assert f"ends at byte {len(whole + other)}" in str(caught.value)
    assert problem in str(caught.value)
    assert len(listener.notes) == 1  # the entries before it were delivered


def test_a_run_without_a_journal_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"has no journal .*entries\.log is missing.*enabled = false"
    ):
        JournalReader.of_run(tmp_path)
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / ENTRIES).touch()  # it has begun, and nothing happened yet
    assert JournalReader.of_run(tmp_path).feed() == 0


def test_a_long_journal_takes_no_more_memory_than_a_short_one(tmp_path):
    def peak(entries):
        with (tmp_path / ENTRIES).open("wb") as log:
            for number in range(entries):
                head, content = encode_record(leased(number), 1.0)
                log.write(head + content)
        reader = JournalReader(tmp_path)
        tracemalloc.start()
        try:
            assert reader.feed() == entries
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # what is made once
    assert peak(6000) < peak(60) + 20_000 < 6000 * 50


def test_a_listener_behind_a_replay_sees_the_state_after_each_entry(bench, tmp_path):
    """While the dataflow goes on: the reader needs no lock, and bodies of groups are read where they are asked for."""
    b = bench(journal=tmp_path).begin()
    tasks, _ = b.lease()
    for task in tasks[:2]:
        b.push(task)
    batch = b.next_batch(0)
    b.announce(1)
    b.acknowledge(batch.id, 1)
    flow, reader, seen = b.build(), JournalReader(tmp_path), []

    class Looks:
        def on_entry(self, at_s, entry):
            stream = flow.state.streams["solver"]
            facts = (flow.state.train.running, stream.updates, flow.state.versions.newest["solver"])
            if isinstance(entry, Pushed | Announced | Acknowledged):
                seen.append((type(entry).__name__, *facts))

    replay = JournalReplay(flow, reader, partial(b.time.__setitem__, 0))
    count = replay.run(reader.entries(), Looks())
    assert count == reader.feed() > 10
    assert seen == [
        ("Announced", 0, 0, 0), ("Pushed", 3, 0, 0), ("Pushed", 2, 0, 0), ("Announced", 2, 0, 1),
        ("Acknowledged", 2, 1, 1),
    ]  # fmt: skip
    assert flow.status().tasks == b.flow.status().tasks
    places = [entry.body for _, entry in reader.entries() if isinstance(entry, Pushed)]
    assert [reader.body(place) for place in places] == [b.bodies[task.id] for task in tasks[:2]]


def test_leases_end_as_they_do_in_the_dataflow(bench, config, tmp_path):
    """Those of a RaaS that left, fell silent or came back, and those of a run that was stopped."""
    b = bench(config(run__max_staleness=4), journal=tmp_path).begin("r0", "r1", "r2")
    (task,), _ = b.lease(2, "r0")
    b.push(task, "r0")
    acts = [
        ("r0", lambda: b.register_raas("r0"), "RaaS 'r0' restarted", False),
        ("r1", lambda: b.leave("r1"), "RaaS 'r1' left", False),
        ("r2", lambda: b.state.raas_gone("r2", "was silent"), "was silent", True),
        ("r0", lambda: b.state.stop("enough"), "the run ends: enough", False),
    ]
    for raas, act, reason, blame in acts:
        b.lease(2, raas)
        act()
        history, ended = LeaseHistory(), []
        for at_s, entry in JournalReader(tmp_path).entries():
            ended += history.take(at_s, entry)
        assert ended[-1].lease.raas == raas
        assert ended[-1].reason.startswith(reason)
        assert (ended[-1].blame, ended[-1].returned) == (blame, True)
        assert {(each.task, each.raas) for each in history.held.values()} == {
            (each.id, each.lease.raas) for each in b.state.train.leased()
        }
    assert (ended[0].lease.task, ended[0].reason, ended[0].returned) == (task.id, "", False)
