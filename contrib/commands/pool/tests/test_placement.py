"""Slots of hosts: turns, priorities and shares of them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow_contrib_pool.broker.placement import Moves, Seat, Want, place

TURN_S = 10.0


def played(slots: dict[str, int], wants: list[Want], ticks: int) -> Counter[str]:
    """Seconds of slots that each run had; a RaaS leaves a second after the request to leave."""
    held, usage = Counter[str](), dict.fromkeys((want.run for want in wants), 0.0)
    since: dict[tuple[str, str], int] = {}
    leaving = set[tuple[str, str]]()
    for now in range(ticks):
        since = {key: at for key, at in since.items() if key not in leaving}
        seats = [Seat(host, run, now - at) for (host, run), at in since.items()]
        asking = [Want(w.run, w.weight, usage[w.run], w.most, w.priority) for w in wants]
        moves = place(slots, seats, asking, TURN_S)
        leaving = set(moves.end)
        since.update(dict.fromkeys(moves.start, now))
        for host, count in Counter(host for host, _ in since).items():
            assert count <= slots[host]
        for _, run in since:
            held[run] += 1
            usage[run] += 1 / next(want.weight for want in wants if want.run == run)
    return held


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=5),
)
def test_every_run_has_its_turn_and_free_slots_are_used(
    slots: list[int], drawn: list[tuple[int, int]]
) -> None:
    hosts = {f"host-{n}": each for n, each in enumerate(slots)}
    wants = [Want(f"run-{n}", weight, 0.0, most) for n, (weight, most) in enumerate(drawn)]
    held = played(hosts, wants, 600)
    assert held.keys() == {want.run for want in wants}
    # Each slot is used by someone if enough runs want it, but for the seconds of a change.
    useful = min(
        sum(min(n, len(wants)) for n in slots), sum(min(w.most, len(slots)) for w in wants)
    )
    assert sum(held.values()) >= 0.8 * 600 * useful


def test_two_runs_on_one_slot_take_turns_by_their_weights() -> None:
    held = played({"only": 1}, [Want("a", 3, 0.0, 1), Want("b", 1, 0.0, 1)], 2000)
    assert abs(held["a"] / sum(held.values()) - 0.75) <= 0.05


def test_a_higher_priority_takes_a_slot_at_once_and_the_same_after_a_turn() -> None:
    seats = [Seat("host", "low", 1.0)]
    low, same = Want("low", 1, 5.0, 1), Want("same", 1, 0.0, 1)
    assert place({"host": 1}, seats, [low, same], TURN_S) == Moves()
    high = Want("high", 1, 9.0, 1, priority=1)
    assert place({"host": 1}, seats, [low, high], TURN_S).end == (("host", "low"),)
    late = [Seat("host", "low", TURN_S)]
    assert place({"host": 1}, late, [low, same], TURN_S).end == (("host", "low"),)
    idle = [Seat("host", "low", 1.0, idle=True)]
    assert place({"host": 1}, idle, [low, same], TURN_S).end == (("host", "low"),)


def test_one_that_leaves_is_enough_for_one_that_waits() -> None:
    seats = [Seat("a", "low", 99.0, leaving=True), Seat("b", "low", 99.0)]
    wants = [Want("low", 1, 5.0, 2), Want("high", 1, 0.0, 1, priority=1)]
    assert place({"a": 1, "b": 1}, seats, wants, TURN_S) == Moves()


def test_a_new_run_gets_the_emptiest_host_and_one_raas_on_each() -> None:
    seats = [Seat("a", "old", 0.0)]
    moves = place({"a": 2, "b": 2}, seats, [Want("old", 1, 0, 1), Want("new", 1, 0, 9)], TURN_S)
    assert moves.start == (("b", "new"), ("a", "new")) and not moves.end
