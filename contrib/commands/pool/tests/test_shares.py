"""Places on one host: a small host is simulated, and what each run got is compared with its weight."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow_contrib_pool.broker.shares import Claim, caught_up, share_places

TICKS = 800


class Simulated:
    """Runs that always have work: each place makes ``speed`` tokens a second, which count when their task ends. A task that
    began ends after one to three seconds, whatever is granted meanwhile."""

    def __init__(self, claims: list[Claim], speeds: list[float], places: int) -> None:
        self.claims = {claim.run: claim for claim in claims}
        self.speeds = dict(zip(self.claims, speeds, strict=True))
        self.tokens = dict.fromkeys(self.claims, 0.0)
        self.episodes = dict.fromkeys(self.claims, 0)
        self.tasks: dict[str, list[int]] = {run: [] for run in self.claims}
        self.places = places

    def _claim(self, claim: Claim) -> Claim:
        run = claim.run
        return replace(
            claim,
            usage=self.tokens[run] / claim.weight,
            tokens=self.tokens[run] / max(1, self.episodes[run]),
            running=len(self.tasks[run]) * claim.unit,
        )

    def play(self, ticks: int = TICKS) -> None:
        for tick in range(ticks):
            given_ = share_places(self.places, [self._claim(c) for c in self.claims.values()])
            for run, claim in self.claims.items():
                for ends in [ends for ends in self.tasks[run] if ends <= tick]:
                    self.tasks[run].remove(ends)
                    self.episodes[run] += claim.unit
                    self.tokens[run] += claim.unit * self.speeds[run] * 2
                while given_[run] and (
                    not self.tasks[run] or (len(self.tasks[run]) + 1) * claim.unit <= given_[run]
                ):
                    self.tasks[run].append(tick + 2 + (tick + len(self.tasks[run])) % 5)

    def shares(self) -> dict[str, float]:
        total = sum(self.tokens.values())
        return {run: tokens / total for run, tokens in self.tokens.items()}


runs = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from([2.0, 5.0, 10.0])), min_size=2, max_size=4
)


@settings(max_examples=10)
@given(runs, st.sampled_from([1, 4, 8]), st.integers(6, 12))
def test_tokens_follow_the_weights_whatever_the_models_are(
    drawn: list[tuple[int, float]], unit: int, tasks: int
) -> None:
    claims = [Claim(f"run-{n}", w, 0.0, unit, 10_000) for n, (w, _) in enumerate(drawn)]
    places = unit * tasks
    world = Simulated(claims, [speed for *_, speed in drawn], places)
    world.play()
    weights = sum(claim.weight for claim in claims)
    for claim in claims:
        due = claim.weight / weights
        assert abs(world.shares()[claim.run] - due) <= 0.05 * due


several = st.lists(
    st.builds(
        Claim,
        run=st.uuids().map(str),
        weight=st.floats(0.1, 10),
        usage=st.floats(0, 1e6),
        unit=st.integers(1, 16),
        most=st.integers(1, 200),
        priority=st.integers(-1, 1),
        tokens=st.sampled_from([0.0, 3.0, 1e4]),
        busy=st.booleans(),
        blocked=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda claim: claim.run,
)


@given(several, st.integers(0, 100))
def test_places_are_used_and_bounded(claims: list[Claim], places: int) -> None:
    given_ = share_places(places, claims)
    busy = [claim for claim in claims if claim.busy and not claim.blocked]
    used = sum(given_[claim.run] for claim in busy)
    assert given_.keys() == {claim.run for claim in claims}
    assert used <= places
    assert all(given_[claim.run] == 0 for claim in claims if claim.blocked)
    # Work conserving: what is left fits no busy run, unless one that has nothing waits for it.
    waits = any(
        not given_[claim.run] for claim in busy if min(claim.unit, claim.most) > places - used
    )
    for claim in busy:
        more = min(claim.unit, claim.most)
        assert waits or given_[claim.run] + more > claim.most or more > places - used
    if busy and places:
        assert used > 0


def test_of_two_priorities_the_lower_gets_what_is_left() -> None:
    high, low = Claim("high", 1, 900.0, 8, 24, priority=1), Claim("low", 9, 0.0, 8, 64)
    assert share_places(32, [high, low]) == {"high": 24, "low": 8}
    assert share_places(24, [high, low]) == {"high": 24, "low": 0}


def test_places_go_to_who_would_have_least() -> None:
    ahead = Claim("ahead", 1, 1000.0, 8, 64, tokens=10.0)
    behind = Claim("behind", 1, 0.0, 8, 64, tokens=10.0)
    assert share_places(32, [ahead, behind]) == {"ahead": 0, "behind": 32}
    assert share_places(32, [replace(ahead, usage=160.0), behind]) == {"ahead": 8, "behind": 24}
    # Longer answers cost more.
    assert share_places(32, [replace(behind, run="long", tokens=30.0), behind]) == {
        "long": 8,
        "behind": 24,
    }
    assert share_places(32, [replace(behind, run="heavy", weight=3.0), behind]) == {
        "heavy": 24,
        "behind": 8,
    }


def test_episodes_that_run_keep_their_places_until_they_end() -> None:
    ahead = Claim("ahead", 1, 1000.0, 8, 64, tokens=10.0, running=24)
    behind = Claim("behind", 1, 0.0, 8, 64, tokens=10.0, running=8)
    assert share_places(32, [ahead, behind]) == {"ahead": 0, "behind": 8}


def test_the_last_episodes_of_a_task_do_not_keep_the_next_one_from_beginning() -> None:
    one, two = (Claim(run, 1, 0.0, 8, 64, tokens=10.0, running=1) for run in ("one", "two"))
    assert share_places(16, [one]) == {"one": 16}
    assert share_places(8, [one]) == {"one": 8}
    assert share_places(16, [one, two]) == {"one": 9, "two": 8}


def test_a_large_task_is_not_starved_by_small_ones() -> None:
    large = Claim("large", 1, 0.0, 8, 64, tokens=10.0)
    small = Claim("small", 1, 500.0, 1, 64, tokens=10.0, running=9)
    assert share_places(9, [large, small]) == {"large": 0, "small": 0}
    assert share_places(9, [large, replace(small, running=1)]) == {"large": 8, "small": 1}


def test_a_host_smaller_than_a_task_runs_one_at_a_time() -> None:
    claims = [Claim("a", 1, 5.0, 8, 64), Claim("b", 1, 3.0, 8, 64)]
    assert share_places(4, claims) == {"a": 0, "b": 4}


def test_an_idle_run_is_offered_its_share_and_costs_nothing() -> None:
    idle = Claim("idle", 1, 0.0, 8, 64, busy=False)
    given_ = share_places(32, [idle, Claim("busy", 3, 0.0, 8, 64)])
    assert given_ == {"idle": 8, "busy": 32}


@pytest.mark.parametrize(("own", "others", "now"), [(0, [7, 9], 7), (8, [7, 9], 8), (3, [], 3)])
def test_who_comes_back_gets_no_credit(own: float, others: list[float], now: float) -> None:
    assert caught_up(others, own) == now
