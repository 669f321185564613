"""Data policies that are replaced while the run continues."""

from __future__ import annotations

import pytest

from astraflow_core.errors import ConfigError, Refused
from astraflow_core.types import Verdict
from astraflow_wire.batches import NoBatch
from astraflow_wire.messages import SwapPolicy


class Limit:
    """At most ``most`` prompts under way; counts them, and the groups."""

    def __init__(self, most=64):
        self.most, self.under_way, self.groups = most, 0, 0

    def on_admitted(self, prompt):
        self.under_way += 1

    def on_ended(self, prompt, outcome):
        self.under_way -= 1

    def hold(self):
        return self.under_way >= self.most

    def accept(self, group):
        self.groups += 1
        return Verdict(True)

    def state_dict(self):
        return {"under_way": self.under_way, "groups": self.groups}

    def load_state_dict(self, state):
        self.under_way, self.groups = state["under_way"], state["groups"]


class Open:
    def admit(self, prompt):
        return True


class Newest:
    def key(self, row):
        return -float(row.arrival)


class Again:
    def draw(self, count, fresh, kept, version):
        rows = [*kept[:1], *fresh]
        return rows[:count] if len(rows) >= count else None


def build(place, table, number):
    made = {"Limit": Limit, "Open": Open, "Newest": Newest, "Again": Again}.get(table.use)
    if made is None:
        raise ConfigError([f"use: there is no {table.use}"])
    return made(**table.options)


@pytest.fixture
def run(bench, config, tmp_path):
    def data(*names):
        return [{"use": name} for name in names]

    made = config(
        run__max_staleness=4, prompts__data=data("Limit"), policy__data=data("Newest", "Open")
    )
    return bench(
        made, admission=[Limit], data=[Newest, Open], journal=tmp_path, build_policy=build
    ).begin()


def swap(b, name, table, place="prompts", id=None, **others):
    message = SwapPolicy(
        id=id or f"{name}{table}",
        place=place,
        name=name,
        author="ada",
        at=7.5,
        table=table,
        **others,
    )
    return b.flow.swapping.swap(message)


def component(b, name, place="prompts"):
    state = b.state
    chain = state.admission.chain if place == "prompts" else state.streams[place].chain
    return chain.policy(name).component


def test_other_keys_hold_at_once_and_the_state_continues(run):
    tasks, _ = run.lease(8)
    assert len(tasks) == 4
    run.push(tasks[0])
    answer = swap(run, "Limit", {"use": "Limit", "most": 2})
    assert (answer.number, answer.table["most"]) == (1, 2)
    now = component(run, "Limit")
    assert (now.most, now.under_way, now.groups) == (2, 3, 1)
    assert run.lease(8)[0] == []
    run.restart()
    assert component(run, "Limit").most == 2
    (told,) = run.flow.status().swaps
    assert (told.author, told.at, told.versions) == ("ada", 7.5, {"solver": 0})
    swap(run, "Limit", {}, id="back")
    assert component(run, "Limit").most == 64
    assert component(run, "Limit").under_way == 3
    assert len(run.lease(8)[0]) > 0
    run.restart()
    assert [told["rollback"] for told in run.state.swaps] == [False, True]


def test_another_component_begins_anew_and_knows_what_is_under_way(run):
    run.lease(8)
    swap(run, "Limit", {"use": "Open"})
    swap(run, "Limit", {"use": "Limit", "most": 3}, id="2")
    assert component(run, "Limit").under_way == 4
    swap(run, "Limit", {}, id="3")
    swap(run, "Limit", {}, id="4")
    assert component(run, "Limit").most == 64
    with pytest.raises(Refused, match="'Limit' of 'prompts' was not swapped"):
        swap(run, "Limit", {}, id="5")
    run.restart()


def test_the_buffer_follows_another_order_and_rows_served_go_with_who_drew_them(run):
    for task in run.lease(12)[0]:
        run.push(task, rewards=(0.0, 1.0))
    fresh = run.state.streams["solver"].buffer
    before = [row.item.arrival for row in fresh.fresh]
    assert before == sorted(before, reverse=True)
    swap(run, "Newest", {"use": "Again"}, place="solver")
    assert [row.item.arrival for row in fresh.fresh] == sorted(before)
    batch = run.next_batch(0)
    assert not isinstance(batch, NoBatch)
    run.announce(1)
    run.acknowledge(batch.id, 1)
    assert len(fresh.kept) == 4
    run.restart()
    fresh = run.state.streams["solver"].buffer
    swap(run, "Newest", {}, place="solver", id="back")
    assert fresh.kept == []
    assert [row.item.arrival for row in fresh.fresh] == sorted(before, reverse=True)[:-4]
    run.restart()
    run.check()


def test_a_message_that_comes_again_is_done_once(run):
    first = swap(run, "Limit", {"use": "Limit", "most": 2}, id="x")
    assert swap(run, "Limit", {"use": "Limit", "most": 2}, id="x") == first
    assert len(run.state.swaps) == 1


def test_what_cannot_be_is_refused_and_changes_nothing(run):
    for arguments, match in [
        (
            ("Limit", {"use": "Limit"}, "critic"),
            "no place 'critic' for data policies; the places are prompts, solver",
        ),
        (("Lim", {"use": "Limit"}), "'prompts' has no data policy 'Lim'; it has 'Limit'"),
        (("Limit", {"most": 3}), "prompts.Limit.use: this key is required"),
        (("Limit", {"use": "Limot"}), "there is no Limot"),
        (("Limit", {}), "was not swapped"),
        (("Limit", {"use": "Limit", "name": "other"}), "keeps its name"),
    ]:
        with pytest.raises(Refused, match=match) as refused:
            swap(run, *arguments)
        assert refused.value.status == 400
    swap(run, "Newest", {"use": "Again"}, place="solver")
    with pytest.raises(Refused, match="only one data policy of a list can draw"):
        swap(run, "Open", {"use": "Again"}, place="solver")
    assert isinstance(component(run, "Open", "solver"), Open)
    run.restart()


def test_a_shadow_can_be_let_loose(run):
    swap(run, "Limit", {"use": "Limit", "most": 1, "shadow": True})
    assert len(run.lease(8)[0]) == 4
    swap(run, "Limit", {"use": "Limit", "most": 1}, id="loose")
    assert run.lease(8)[0] == []
    assert run.state.admission.chain.shadows == {}
    run.restart()
