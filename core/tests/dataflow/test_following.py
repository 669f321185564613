"""Data policies that follow their prompts, and those that hold rollouts back."""

from __future__ import annotations

import logging

import pytest

from astraflow_core.types import Verdict


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


class AtMost:
    """Wants two prompts under way at most."""

    def __init__(self):
        self.under_way = 0

    def on_admitted(self, prompt):
        self.under_way += 1

    def on_ended(self, prompt, outcome):
        self.under_way -= 1

    def hold(self):
        return self.under_way >= 2


class Never:
    def admit(self, prompt):
        return False

    def hold(self):
        return True


def test_a_policy_hears_how_each_prompt_ended(bench, config, tmp_path):
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
    assert b.flow.status()["held_by"] == "AtMost"
    b.restart()
    b.push(tasks[0])
    assert b.flow.leasing.work_available()
    assert len(b.lease(64)[0]) == 1


def test_nobody_holds_back_the_only_prompt_and_forcing_is_told(bench, config, caplog):
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
def test_what_becomes_of_a_group_is_told(bench, config, outcome):
    class Refuse:
        def accept(self, group):
            return Verdict(False, "no")

    b = bench(config(), admission=[Follower], data=[Refuse] * (outcome == "rejected")).begin()
    task = b.lease(2)[0][0]
    b.push(task)
    assert b.state.admission.chain._policies[0].component.told[-1] == ("p0", outcome)
