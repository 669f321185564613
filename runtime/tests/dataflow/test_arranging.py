"""Data policies that arrange the fresh rows of a batch, alone, in a row, and before one that draws."""

from __future__ import annotations

import pytest

from astraflow_core.errors import PluginError, RunFailed
from astraflow_runtime.dataflow.policies.pipeline import NamedPolicy, PolicyPipeline
from astraflow_wire.batches import NoBatch


class Backwards:
    def arrange(self, fresh, version):
        return list(fresh)[::-1]


class Even:
    def arrange(self, fresh, version):
        return [row for row in fresh if row.arrival % 2 == 0]


class Counting:
    """Turns the rows around every other time that it is asked."""

    def __init__(self):
        self.asked = 0

    def arrange(self, fresh, version):
        self.asked += 1
        return list(fresh)[::-1] if self.asked % 2 else list(fresh)

    def state_dict(self):
        return {"asked": self.asked}

    def load_state_dict(self, state):
        raise AssertionError("a journal restores a policy by its calls")


class HalfKept:
    def draw(self, count, fresh, kept, version):
        old = list(kept)[: count // 2]
        need = count - len(old)
        return [*fresh[:need], *old] if len(fresh) >= need else None


class Wrong:
    def arrange(self, fresh, version):
        return [fresh[0], fresh[0]]


@pytest.fixture
def run(bench, config, tmp_path):
    def made(*data):
        return bench(config(run__max_staleness=9), data=data, journal=tmp_path).begin()

    return made


def fill(b, groups):
    for task in b.lease(2 * groups)[0]:
        b.push(task, rewards=(0.0, 1.0))


def arrivals(b, version=0):
    batch = b.next_batch(version)
    if batch is None or isinstance(batch, NoBatch):
        return None
    served = [row.item.arrival for row in b.state.streams["solver"].outstanding.rows]
    b.announce(version + 1)
    b.acknowledge(batch.id, version + 1)
    return served


def test_the_batch_takes_the_first_rows_as_all_policies_arrange_them(run):
    b = run(Even, Backwards)
    fill(b, 6)
    assert arrivals(b) == [10, 8, 6, 4]
    b.restart()
    assert arrivals(b, 1) is None  # two rows are even
    decisions = b.flow.status().decisions["solver"]
    assert decisions["Even"]["arrange"] == {"held back": 2}
    assert decisions["Backwards"]["arrange"] == {"arranged": 2}
    b.check()


def test_one_that_draws_is_offered_the_rows_as_they_are_arranged(run):
    b = run(Backwards, HalfKept)
    fill(b, 4)
    assert arrivals(b) == [7, 6, 5, 4]
    assert arrivals(b, 1) == [3, 2, 7, 6]
    b.restart().check()


class LatestHalf:
    def draw(self, count, fresh, kept, version):
        old = list(kept)[len(kept) - min(count // 2, len(kept)) :]
        need = count - len(old)
        return [*fresh[:need], *old] if len(fresh) >= need else None


def test_rows_drawn_again_keep_their_place_among_those_served(run):
    b = run(LatestHalf)
    fill(b, 5)
    served = []
    for version in range(4):
        served.append(arrivals(b, version))
        b.restart()
    assert served == [[0, 1, 2, 3], [4, 5, 2, 3], [6, 7, 4, 5], [8, 9, 6, 7]]
    assert [row.item.times_served for row in b.state.streams["solver"].buffer.kept] == [
        1, 1, 2, 2, 2, 2, 2, 2, 1, 1,
    ]  # fmt: skip
    b.check()


def test_what_a_policy_was_asked_without_a_batch_is_repeated_too(run):
    b = run(Even, Counting)
    fill(b, 3)
    assert arrivals(b) is None
    fill(b, 3)
    b.restart()
    assert arrivals(b) == [0, 2, 4, 6]
    assert b.state.streams["solver"].chain.policy("Counting").component.asked == 2


def test_no_one_is_asked_before_there_are_rows_enough(run):
    b = run(Counting)
    fill(b, 1)
    assert arrivals(b) is None
    assert b.state.streams["solver"].chain.policy("Counting").component.asked == 0


def test_rows_that_were_not_offered_once_each_fail_the_run(run):
    b = run(Wrong)
    fill(b, 2)
    with pytest.raises(
        RunFailed, match="'Wrong' arranged 4 rows and returned 2, 1 of them distinct"
    ):
        b.next_batch(0)


def test_two_that_draw_are_refused_with_the_reason():
    with pytest.raises(PluginError, match="'a' and 'b': it decides how many of them are fresh"):
        PolicyPipeline([NamedPolicy("a", HalfKept()), NamedPolicy("b", HalfKept())])
    PolicyPipeline([NamedPolicy("a", HalfKept()), NamedPolicy("b", HalfKept(), shadow=True)])


def test_a_shadow_arranges_without_effect(bench, config):
    b = bench(config(), data=[Backwards]).begin()
    chain = b.state.streams["solver"].chain
    chain.replace(NamedPolicy("Backwards", Backwards(), shadow=True))
    fill(b, 3)
    fill(b, 3)
    assert arrivals(b) == [0, 1, 2, 3]
    assert chain.metrics()["Backwards/shadow_batches"] == 1
    assert chain.metrics()["Backwards/shadow_rows_otherwise"] == 4
