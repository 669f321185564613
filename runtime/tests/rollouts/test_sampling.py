"""Which groups are stored."""

from __future__ import annotations

import pytest

from astraflow_runtime.rollouts.sampling import GroupSampling, number_of


@pytest.mark.parametrize(("count", "block"), [(1, 1), (1, 32), (2, 3), (5, 5)])
def test_of_each_block_as_many_are_stored_as_asked_for(count: int, block: int) -> None:
    sampling, again = GroupSampling(count, block, 7), GroupSampling(count, block, 7)
    stored = [number for number in range(100 * block) if sampling.stores(number)]
    assert [sum(n // block == b for n in stored) for b in range(100)] == [count] * 100
    assert stored == [number for number in range(100 * block) if again.stores(number)]


def test_every_place_of_a_block_has_its_turn_and_seeds_differ() -> None:
    places = [n % 8 for n in range(8000) if GroupSampling(1, 8, 0).stores(n)]
    assert all(80 < places.count(place) < 170 for place in range(8))
    other = [n % 8 for n in range(8000) if GroupSampling(1, 8, 1).stores(n)]
    assert sum(a == b for a, b in zip(places, other, strict=True)) < 200


def test_nothing_is_stored_of_none() -> None:
    assert not any(GroupSampling(0, 4, 0).stores(number) for number in range(50))
    assert not GroupSampling(3, 3, 0).stores(-1)


@pytest.mark.parametrize(
    ("task", "number"),
    [
        ("train-0", 0),
        ("train-12", 12),
        ("eval-3", None),
        ("train-x", None),
        ("train-", None),
        ("train-²", None),
    ],
)
def test_the_number_of_a_group_is_that_of_its_task(task: str, number: int | None) -> None:
    assert number_of(task) == number
