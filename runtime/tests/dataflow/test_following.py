"""Data policies that follow their prompts, and those that hold rollouts back."""

from __future__ import annotations

import logging

import pytest
from at_most import AtMost

from astraflow_core.types import Verdict
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.policies.pipeline import NamedPolicy, PolicyPipeline
from astraflow_runtime.dataflow.rows.buffer import RowBuffer
from astraflow_wire.batches import encode_batch


class Follower:
    def __init__(self):
        self.told = []

    def on_admitted(self, prompt):
        self.told.append(prompt.id)

    def on_ended(self, prompt, outcome):
        self.told.append((prompt.id, outcome))

    def accept(self, group):
        self.told.append(("accept", group.prompt.id))
        return Verdict(True)

    def state_dict(self):
        return {"told": [list(each) for each in self.told]}

    def load_state_dict(self, state):
        raise AssertionError("a journal restores a policy by its calls")


class Never:
    def admit(self, prompt):
        return False

    def hold(self):
        return True


def test_a_policy_is_notified_of_the_end_of_each_prompt(bench, config, tmp_path):
    b = bench(config(run__task_attempts=1), admission=[Follower], journal=tmp_path).begin()
    first, second, third = b.lease(6)[0]
    b.push(first, rewards=(0.0, 1.0))
    b.fail(second, fatal=True)
    b.fail(third)
    told = b.state.admission.chain._policies[0].component.told
    assert told == [
        *("p0", "p1", "p2"),
        *(("accept", "p0"), ("p0", "accepted"), ("p1", "failed"), ("p2", "set_aside")),
    ]
    b.restart()


def test_a_prompt_is_admitted_only_when_none_holds_back(bench, config, tmp_path):
    b = bench(config(run__max_staleness=8), admission=[AtMost], journal=tmp_path).begin()
    tasks, _ = b.lease(64)
    assert len(tasks) == 2
    assert b.lease(64)[0] == []
    assert not b.flow.leasing.work_available()
    assert b.flow.status().held_by == "AtMost"
    b.restart()
    b.push(tasks[0])
    assert b.flow.leasing.work_available()
    assert len(b.lease(64)[0]) == 1


def test_no_one_holds_back_the_only_prompt_and_forcing_is_reported(bench, config, caplog):
    b = bench(config(), prompts=3, admission=[Never]).begin()
    with caplog.at_level(logging.WARNING):
        tasks, _ = b.lease(64)
    assert [task.prompt_id for task in tasks] == ["p0"]
    assert b.state.admission.forced == 1
    assert (
        "whole epoch of 3 prompts was refused by the data policies 'Never' (3 so far)"
        in caplog.text
    )


@pytest.mark.parametrize("outcome", ["accepted", "rejected"])
def test_what_becomes_of_a_group_is_reported(bench, config, outcome):
    class Refuse:
        def accept(self, group):
            return Verdict(False, "no")

    b = bench(config(), admission=[Follower], data=[Refuse] * (outcome == "rejected")).begin()
    task = b.lease(2)[0][0]
    b.push(task)
    assert b.state.admission.chain._policies[0].component.told[-1] == ("p0", outcome)


class Contrary:
    """Refuses everything, draws the newest rows first and counts what it is shown."""

    def __init__(self):
        self.shown = 0

    def admit(self, prompt):
        self.shown += 1
        return False

    def accept(self, group):
        self.shown += 1
        return Verdict(False, "contrary")

    def key(self, row):
        return -float(row.arrival)

    def draw(self, count, fresh, kept, version):
        self.shown += len(kept)
        return list(reversed(fresh))[:count]

    def hold(self):
        return True

    def state_dict(self):
        return {"shown": self.shown}

    def load_state_dict(self, state):
        raise AssertionError("a journal restores a policy by its calls")


def test_a_shadow_learns_and_counts_and_decides_nothing(bench, config, tmp_path):
    def played(name, shadow):
        journal = tmp_path / name
        b = bench(config(run__max_staleness=4), journal=journal)
        b.state.close()
        built = b.build

        def build():
            flow = built()
            for stream in (flow.state, *flow.state.streams.values()):
                policies = [NamedPolicy("contrary", Contrary(), True)] if shadow else []
                chain = PolicyPipeline(policies)
                if stream is flow.state:
                    stream.admission.chain = chain
                    stream.train._on_ended = chain.on_ended
                else:
                    stream.chain, stream.buffer = chain, RowBuffer(chain.key, chain.wants_kept)
            return flow

        b.build, b.flow = build, build()
        b.state.records.begin(Journal(journal, lambda: b.time[0]))
        b.begin()
        batches = []
        for version in range(3):
            for task in b.lease(6, serving=version)[0]:
                b.push(task, version=version)
            batches.append(b.next_batch(version))
            b.announce(version + 1)
            b.acknowledge(batches[-1].id, version + 1)
        b.restart()
        return b, batches

    b, with_shadow = played("with", True)
    _, without = played("without", False)
    for one, other in zip(with_shadow, without, strict=True):
        assert encode_batch(one) == encode_batch(other)
    admission, stream = b.state.admission.chain, b.state.streams["solver"].chain
    tasks = b.state.train.admitted
    assert admission.shadows["contrary"].prompts_refused == tasks
    assert stream.shadows["contrary"].groups_refused == b.state.streams["solver"].groups_accepted
    counts = stream.metrics()
    assert counts["contrary/shadow_batches"] == 3
    assert 0 < counts["contrary/shadow_rows_otherwise"] <= 12
    assert admission.refused == {}
    assert stream._policies[0].component.shown > tasks  # it saw rows served before, too
