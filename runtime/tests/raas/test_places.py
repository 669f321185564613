"""How many episodes a RaaS leases tasks for, and when those that it has leased begin."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from astraflow_runtime.raas.places import EpisodePlaces

GROUP = 8


class Rig:
    """EpisodePlaces of 16 episodes on a clock of its own."""

    def __init__(self, limit=16):
        self.now, self.limit = 100.0, limit
        self.places = EpisodePlaces(lambda: self.limit, lambda: self.now)

    def busy(self, per_s, seconds=60.0):
        """Full, with so many episodes that end each second for a minute, each replaced by another."""
        running = [self.places.take(1) for _ in range(self.limit)]
        for number in range(int(per_s * seconds)):
            self.now += 1 / per_s
            running[number % self.limit].ended()
            running[number % self.limit].leave()
            running[number % self.limit] = self.places.take(1)
        return running


def test_it_asks_for_what_is_free_when_the_answer_is_here():
    rig = Rig()
    running = rig.busy(per_s=32)
    assert rig.places.free(GROUP) == 0, "as long as no call was timed"
    rig.places.answered(0.002)
    assert rig.places.free(GROUP) == 0, "a dataflow on the same host answers before an episode ends"
    rig.places._round_trips.clear()
    rig.places.answered(0.3)
    rig.places.answered(4.0)  # it was retried
    assert rig.places.free(GROUP) == 9 == int(32 * 0.3)
    rig.places.take(GROUP)
    assert rig.places.free(GROUP) == 0, "what it has leased ahead counts"
    rig.places.answered(0.1)
    assert rig.places._ahead(GROUP) == GROUP, "tasks are leased as a whole"
    for place in running[:10]:
        place.ended()
    assert rig.places.running == 16 - 10 + GROUP


def test_what_does_not_run_cannot_end():
    rig = Rig()
    running = rig.busy(per_s=100)
    rig.places.answered(10.0)
    assert rig.places.free(GROUP) == 16, "at most as many again as run"
    for place in running:
        place.leave()
    assert rig.places.free(GROUP) == 16, "and no more than there is room for if nothing runs"
    rig.places.take(4)
    rig.now += 60
    assert rig.places.free(GROUP) == 12, "the rate of a minute ago is forgotten"


def test_a_whole_group_is_leased_if_nothing_is():
    rig = Rig(limit=4)
    assert rig.places.free(GROUP) == GROUP
    rig.places.take(GROUP)
    assert rig.places.running == GROUP and rig.places.free(GROUP) == 0


def test_tasks_begin_in_turn_when_there_is_room():
    async def scenario():
        rig = Rig()
        first, second, third, fourth = (rig.places.take(GROUP) for _ in range(4))
        begun = [asyncio.create_task(place.begin(60)) for place in (third, fourth)]
        await asyncio.sleep(0)
        assert rig.places.running == 16 and rig.places.held == 32
        assert not any(task.done() for task in begun)
        for _ in range(GROUP):
            second.ended()
        await begun[0]
        assert rig.places.running == 16 and not begun[1].done()
        begun[1].cancel()  # its lease was revoked
        fourth.leave()
        first.leave()
        third.leave()
        second.leave()
        assert rig.places.running == rig.places.held == 0

    asyncio.run(scenario())


def test_a_limit_that_grows_lets_them_begin():
    rig = Rig(limit=8)
    rig.places.take(GROUP)
    rig.places.take(GROUP)
    assert rig.places.running == 8
    rig.limit = 16
    rig.places.look()
    assert rig.places.running == 16


def test_no_task_waits_for_longer_than_its_lease_allows():
    async def scenario():
        rig = Rig()
        for _ in range(2):
            rig.places.take(GROUP)  # they hang
        late = rig.places.take(GROUP)
        await late.begin(0.0)
        assert rig.places.running == 24

    asyncio.run(scenario())


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.sampled_from(["take", "end", "leave"]), st.integers(0, 30))),
)
def test_no_more_run_than_may_and_none_waits_beside_room(limit, acts):
    rig, places = Rig(limit), []
    for act, number in acts:
        if act == "take":
            places.append(rig.places.take(1 + number % 6))
        elif places:
            place = places[number % len(places)]
            place.ended() if act == "end" else places.remove(place) or place.leave()
        waiting = rig.places._waiting
        assert rig.places.running == sum(p.episodes for p in places if p not in waiting)
        assert rig.places.held == sum(p.episodes for p in places)
        lone = sum(p.episodes > 0 for p in places if p not in waiting) <= 1
        assert rig.places.running <= limit or lone
        if waiting:
            assert rig.places.running + waiting[0].episodes > limit and rig.places.running
