from __future__ import annotations

import json
import os

import pytest

from astraflow_core.dataflow.chains import DataChain, NamedPolicy
from astraflow_core.dataflow.cursor import PromptCursor
from astraflow_core.dataflow.journal import (
    Accepted,
    Acknowledged,
    Admitted,
    Announced,
    Cut,
    Journal,
    read_journal,
)
from astraflow_core.dataflow.steplog import StepLog
from astraflow_core.errors import PluginError, RunFailed, WireError
from astraflow_core.types import BufferedRow, Prompt, Verdict
from astraflow_core.wire.frames import Frame, decode_header
from astraflow_core.wire.groups import GroupHeader


class Letters:
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return Prompt("abcde"[index])


def walk(cursor, count):
    return "".join(cursor.take().id for _ in range(count))


def test_every_epoch_is_a_permutation_and_a_position_is_enough_to_go_on():
    walked = walk(PromptCursor(Letters(), 7, True), 15)
    epochs = [walked[i : i + 5] for i in (0, 5, 10)]
    assert all(sorted(epoch) == list("abcde") for epoch in epochs)
    assert len(set(epochs)) > 1
    assert walk(PromptCursor(Letters(), 7, True, position=8), 7) == walked[8:]
    assert walk(PromptCursor(Letters(), 8, True), 15) != walked
    assert walk(PromptCursor(Letters(), 7, False), 7) == "abcdeab"


def test_the_journal_tells_the_run_verbatim(bench, tmp_path):
    journal = Journal(tmp_path / "journal")
    b = bench(journal=journal).begin()
    tasks, _ = b.lease()
    for task in tasks[:2]:
        b.push(task)
    batch = b.next_batch(0)
    b.announce(1)
    b.acknowledge(batch.id, 1)
    journal.close()
    payloads = list(read_journal(journal.path))
    kinds = GroupHeader | Announced | Admitted | Accepted | Cut | Acknowledged
    headers = [decode_header(Frame(payload), kinds) for payload in payloads]
    names = [type(header).__name__ for header in headers]
    assert names == ["Announced", *["Admitted"] * 4, *["GroupHeader", "Accepted"] * 2, "Cut",
                     "Announced", "Acknowledged"]  # fmt: skip
    assert payloads[5] == b.bodies["train-0"]
    assert headers[8].rows == {"solver": [(0, 2), (1, 3)]}
    assert headers[9].arrivals == [0, 1, 2, 3]
    assert headers[4].cursor == 4


def test_a_record_cut_short_ends_the_journal_and_a_damaged_one_is_refused(tmp_path):
    journal = Journal(tmp_path)
    for number in range(3):
        journal.write(Admitted(task=f"train-{number}", prompt_id="p", cursor=number))
    journal.close()
    whole = journal.path.read_bytes()
    assert len(list(read_journal(journal.path))) == 3
    journal.path.write_bytes(whole[:-3])
    assert len(list(read_journal(journal.path))) == 2
    journal.path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    with pytest.raises(WireError, match="is damaged"):
        list(read_journal(journal.path))
    assert Journal(tmp_path).path.name == "00000001.log"  # never written over


def test_a_record_survives_a_killed_process(tmp_path):
    child = os.fork()
    if child == 0:
        Journal(tmp_path).write(Admitted(task="train-0", prompt_id="p", cursor=1))
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert len(list(read_journal(tmp_path / "00000000.log"))) == 1


def test_one_line_for_each_step_and_evaluation(bench, config, tmp_path):
    b = bench(
        config(run__max_staleness=0, eval__every=1),
        evals={"held": 1},
        log=StepLog(tmp_path / "metrics.jsonl"),
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
    chain = DataChain([NamedPolicy("x", First()), NamedPolicy("y", Second())])
    rows = [row(0, 2), row(1, 1, 0.0), row(2, 1, 1.0)]
    assert [r.arrival for r in sorted(rows, key=lambda r: chain.key(r))] == [2, 1, 0]


def test_two_policies_cannot_both_draw():
    both = [NamedPolicy("x", Draws(None)), NamedPolicy("y", Draws(None))]
    with pytest.raises(PluginError, match="'x' and 'y'"):
        DataChain(both)


@pytest.mark.parametrize(
    "choose",
    [lambda rows: rows[:1], lambda rows: [rows[0], rows[0]], lambda rows: [rows[0], row(99)]],
    ids=["too few", "twice", "not offered"],
)
def test_a_policy_that_draws_other_rows_than_were_offered_fails_the_run(choose):
    chain = DataChain([NamedPolicy("greedy", Draws(choose))])
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
    chain = DataChain(policies)
    chain.accept(None)
    restored = DataChain([NamedPolicy("key", First()), NamedPolicy("count", Counting())])
    restored.load_state_dict(chain.state_dict())
    assert chain.state_dict() == [None, {"count": 1}]
    assert restored.metrics() == {"count/count": 1.0}
