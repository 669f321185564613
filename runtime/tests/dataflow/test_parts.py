from __future__ import annotations

import json
import os
import resource
from contextlib import contextmanager, suppress

import pytest

from astraflow_core.errors import PluginError, RunFailed, UserError
from astraflow_core.types import BufferedRow, Prompt, Verdict
from astraflow_runtime.dataflow.journal.entries import PromptsConsumed
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.journal.steplog import StepLog
from astraflow_runtime.dataflow.policies.pipeline import NamedPolicy, PolicyPipeline
from astraflow_runtime.dataflow.tasks.cursor import PromptCursor


class Letters:
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return Prompt("abcde"[index])


def walk(cursor, count):
    return "".join(cursor.take().id for _ in range(count))


def test_every_epoch_is_a_permutation_and_a_position_is_enough_to_continue():
    walked = walk(PromptCursor(Letters(), 7, True), 15)
    epochs = [walked[i : i + 5] for i in (0, 5, 10)]
    assert all(sorted(epoch) == list("abcde") for epoch in epochs)
    assert len(set(epochs)) > 1
    assert walk(PromptCursor(Letters(), 7, True, position=8), 7) == walked[8:]
    assert walk(PromptCursor(Letters(), 8, True), 15) != walked
    assert walk(PromptCursor(Letters(), 7, False), 7) == "abcdeab"


def in_order(directory):
    journal = Journal(directory, lambda: 0.0)
    try:
        return [entry for _, entry in journal.entries()]
    finally:
        journal.close()


def test_the_journal_tells_the_run(bench, tmp_path):
    b = bench(journal=tmp_path).begin()
    tasks, _ = b.lease()
    for task in tasks[:2]:
        b.push(task)
    batch = b.next_batch(0)
    b.announce(1)
    b.acknowledge(batch.id, 1)
    b.state.close()
    told = in_order(tmp_path)
    assert [type(entry).__name__ for entry in told] == [
        "TrainerRegistration", "Announced", "RaasRegistration", *["PromptsConsumed", "Leased"] * 4, *["Pushed"] * 2,
        "BatchRequested", "Announced", "Acknowledged",
    ]  # fmt: skip
    pushed, asked = told[11], told[13]
    journal = Journal(tmp_path, lambda: 0.0)
    assert journal.reader.body(pushed.body) == b.bodies["train-0"]
    assert (asked.batch, asked.arrivals) == ("solver-000000", [0, 1, 2, 3])
    assert told[9].cursor == 4


def test_a_record_cut_short_ends_the_journal(tmp_path):
    path = tmp_path / "entries.log"
    journal = Journal(tmp_path, lambda: 0.0)
    for number in range(3):
        journal.write(PromptsConsumed(task=f"train-{number}", cursor=number))
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 3)
    os.close(journal._entries._file)  # its process is killed
    journal = Journal(tmp_path, lambda: 0.0)
    assert len(list(journal.entries())) == 2
    journal.write(PromptsConsumed(cursor=9))  # in the place of what was cut off
    journal.close()
    assert [entry.cursor for entry in in_order(tmp_path)] == [0, 1, 9]


def test_two_processes_do_not_write_one_journal(tmp_path, monkeypatch):
    monkeypatch.setattr("astraflow_runtime.dataflow.journal.journal.OTHERS_END_S", 0.1)
    journal = Journal(tmp_path, lambda: 0.0)
    with pytest.raises(UserError, match="another dataflow is writing this journal"):
        Journal(tmp_path, lambda: 0.0)
    journal.close()
    Journal(tmp_path, lambda: 0.0).close()


def test_a_damaged_body_is_refused(tmp_path):
    journal = Journal(tmp_path, lambda: 0.0)
    places = [journal.keep(body) for body in (b"one", b"four")]
    assert [journal.reader.body(place) for place in places] == [b"one", b"four"]
    file = tmp_path / "bodies-00000000.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"R")
    assert journal.reader.body(places[0]) == b"one"
    with pytest.raises(RunFailed, match="the group at byte 3 is damaged"):
        journal.reader.body(places[1])


def test_bodies_that_are_not_needed_go(tmp_path):
    journal = Journal(tmp_path, lambda: 0.0, segment_bytes=10)
    places = [journal.keep(bytes([number]) * 6) for number in range(7)]
    assert [place.segment for place in places] == [0, 0, 1, 1, 2, 2, 3]
    journal.prune({1})
    assert journal.segments() == [1, 3]
    journal.sync()
    journal.close()
    journal = Journal(tmp_path, lambda: 0.0, segment_bytes=10)
    assert journal.reader.body(places[2]) == bytes([2]) * 6
    assert journal.keep(b"more").segment == 3


def test_the_first_files_of_bodies_stay_as_far_as_they_are_recorded(tmp_path):
    journal = Journal(tmp_path, lambda: 0.0, segment_bytes=10, recorded_bytes=30)
    for number in range(9):
        journal.keep(bytes([number]) * 6)
        journal.prune(set())
    assert journal.segments() == [0, 1, 4]
    journal.close()


@contextmanager
def descriptors_left(count):
    """``count`` files can be opened, and no more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))  # other tests may have left files open
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 16, before[1]))
    held = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for file in held[:count]:
            os.close(file)
        del held[:count]
        yield
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_without_descriptors_bodies_go_into_the_file_that_is_open(tmp_path, left):
    journal = Journal(tmp_path, lambda: 0.0, segment_bytes=10)
    with descriptors_left(left):
        places = [journal.keep(bytes([number]) * 6) for number in range(3)]
        journal.sync()
    assert [place.segment for place in places] == ([0, 0, 1] if left == 2 else [0, 0, 0])
    places.append(journal.keep(b"more"))
    assert places[-1].segment == 1
    journal.close()
    journal = Journal(tmp_path, lambda: 0.0, segment_bytes=10)
    assert [journal.reader.body(place)[:1] for place in places] == [b"\0", b"\1", b"\2", b"m"]
    journal.close()


def test_a_record_survives_a_killed_process(tmp_path):
    child = os.fork()
    if child == 0:
        Journal(tmp_path, lambda: 0.0).write(PromptsConsumed(task="train-0", cursor=1))
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert len(in_order(tmp_path)) == 1


def test_one_line_for_each_step_and_evaluation(bench, config, tmp_path):
    b = bench(
        config(run__max_staleness=0, eval__every=1),
        evals={"held": 1},
        steps=StepLog(tmp_path / "metrics.jsonl"),
    ).begin()
    for task in b.lease()[0]:
        b.push(task)
    batch = b.next_batch(0)
    b.announce(1)
    b.acknowledge(batch.id, 1)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [("eval" in line, line.get("step")) for line in lines] == [(True, None), (False, 1)]
    assert lines[0]["eval"]["versions"] == {"solver": 0}
    assert lines[1]["metrics"] == {"loss": 0.5}
    assert (lines[1]["policy"], lines[1]["version"], lines[1]["reward"]) == ("solver", 1, 0.5)
    assert all(line["time"] > 1e9 for line in lines)


class First:
    def key(self, row):
        return float(row.length)


class Second:
    def key(self, row):
        return -row.reward


class Draws:
    def __init__(self, choose):
        self.choose = choose

    def draw(self, count, fresh, kept, version):
        return self.choose(list(fresh))


def row(arrival, length=1, reward=0.0):
    return BufferedRow(arrival, "p", 0, length, reward, 1, 0.0, 0.0)


def test_the_first_key_decides_and_the_next_breaks_ties():
    chain = PolicyPipeline([NamedPolicy("x", First()), NamedPolicy("y", Second())])
    rows = [row(0, 2), row(1, 1, 0.0), row(2, 1, 1.0)]
    assert [r.arrival for r in sorted(rows, key=lambda r: chain.key(r))] == [2, 1, 0]


def test_two_policies_cannot_both_draw():
    both = [NamedPolicy("x", Draws(None)), NamedPolicy("y", Draws(None))]
    with pytest.raises(PluginError, match="'x' and 'y'"):
        PolicyPipeline(both)


@pytest.mark.parametrize(
    "choose",
    [lambda rows: rows[:1], lambda rows: [rows[0], rows[0]], lambda rows: [rows[0], row(99)]],
    ids=["too few", "twice", "not offered"],
)
def test_a_policy_that_draws_other_rows_than_were_offered_fails_the_run(choose):
    chain = PolicyPipeline([NamedPolicy("greedy", Draws(choose))])
    with pytest.raises(RunFailed, match="'greedy' drew"):
        chain.draw(2, [row(0), row(1), row(2)], [], 0)


class Counting:
    """Counts groups; its number belongs in a checkpoint."""

    def __init__(self):
        self.count = 0

    def accept(self, group):
        self.count += 1
        return Verdict(True)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]

    def metrics(self):
        return {"count": self.count}


def test_states_and_metrics_of_a_chain():
    policies = [NamedPolicy("key", First()), NamedPolicy("count", Counting())]
    chain = PolicyPipeline(policies)
    chain.accept(None)
    restored = PolicyPipeline([NamedPolicy("key", First()), NamedPolicy("count", Counting())])
    restored.load_state_dict(chain.state_dict())
    assert chain.state_dict() == [None, {"count": 1}]
    assert restored.metrics() == {"count/count": 1.0}
