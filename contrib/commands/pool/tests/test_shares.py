"""Places on one host: a small host is simulated, and what each run got is compared with its weight."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow_contrib_pool.broker.shares import Claim, caught_up, share_places

TICK_S, TICKS = 0.5, 2000


class Simulated:
    """Runs that always have work: each place makes ``speed`` tokens a second, and a task of ``unit`` episodes that began ends,
    whatever is granted meanwhile."""

    def __init__(self, claims: list[Claim], speeds: list[float], places: int) -> None:
        self.claims = {claim.run: claim for claim in claims}
        self.speeds = dict(zip(self.claims, speeds, strict=True))
        self.tokens = dict.fromkeys(self.claims, 0.0)
        self.running = dict.fromkeys(self.claims, 0)
        self.places = places

    def play(self, ticks: int = TICKS) -> None:
        for tick in range(ticks):
            rate = sum(self.tokens.values()) / (TICK_S * max(1, tick))
            weights = sum(claim.weight for claim in self.claims.values())
            claims = [
                Claim(run, c.weight, self.tokens[run] / c.weight, c.unit, c.most, c.priority)
                for run, c in self.claims.items()
            ]
            given_ = share_places(self.places, claims, rate / weights)
            for number, (run, claim) in enumerate(self.claims.items()):
                if tick % (2 + number % 3) == 0:  # tasks end, and others begin
                    self.running[run] = given_[run] // claim.unit * claim.unit or (
                        claim.unit if given_[run] else 0
                    )
                self.tokens[run] += self.running[run] * self.speeds[run] * TICK_S  # fmt: skip

    def shares(self) -> dict[str, float]:
        total = sum(self.tokens.values())
        return {run: tokens / total for run, tokens in self.tokens.items()}


runs = st.lists(
    st.tuples(st.integers(1, 8), st.sampled_from([1, 4, 8]), st.sampled_from([2.0, 5.0, 10.0])),
    min_size=2,
    max_size=4,
)


@settings(max_examples=10)
@given(runs, st.integers(8, 64))
def test_tokens_follow_the_weights_whatever_the_models_and_groups_are(
    drawn: list[tuple[int, int, float]], places: int
) -> None:
    claims = [Claim(f"run-{n}", w, 0.0, unit, 10_000) for n, (w, unit, _) in enumerate(drawn)]
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
        busy=st.booleans(),
        blocked=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda claim: claim.run,
)


@settings(max_examples=100)
@given(several, st.integers(0, 100), st.floats(0, 1e6))
def test_places_are_used_and_bounded(claims: list[Claim], places: int, tolerance: float) -> None:
    given_ = share_places(places, claims, tolerance)
    busy = [claim for claim in claims if claim.busy and not claim.blocked]
    used = sum(given_[claim.run] for claim in busy)
    assert given_.keys() == {claim.run for claim in claims}
    assert used <= places
    assert all(given_[claim.run] == 0 for claim in claims if claim.blocked)
    # Work conserving: what is left fits no busy run.
    for claim in busy:
        more = min(claim.unit, claim.most)
        assert given_[claim.run] + more > claim.most or more > places - used
    if busy and places:
        assert used > 0


def test_of_two_priorities_the_lower_gets_what_is_left() -> None:
    high, low = Claim("high", 1, 900.0, 8, 24, 1), Claim("low", 9, 0.0, 8, 64)
    assert share_places(32, [high, low], 0.0) == {"high": 24, "low": 8}
    assert share_places(24, [high, low], 0.0) == {"high": 24, "low": 0}


def test_who_is_ahead_waits_and_nobody_starves() -> None:
    ahead, behind = Claim("ahead", 1, 100.0, 8, 64), Claim("behind", 1, 10.0, 8, 64)
    assert share_places(32, [ahead, behind], 50.0) == {"ahead": 0, "behind": 32}
    assert share_places(32, [ahead, behind], 90.0) == {"ahead": 16, "behind": 16}


def test_a_host_smaller_than_a_task_runs_one_at_a_time() -> None:
    claims = [Claim("a", 1, 5.0, 8, 64), Claim("b", 1, 3.0, 8, 64)]
    assert share_places(4, claims, 0.0) == {"a": 0, "b": 4}


def test_an_idle_run_is_offered_its_share_and_costs_nothing() -> None:
    idle = Claim("idle", 1, 0.0, 8, 64, busy=False)
    given_ = share_places(32, [idle, Claim("busy", 3, 0.0, 8, 64)], 0.0)
    assert given_ == {"idle": 8, "busy": 32}


@pytest.mark.parametrize(("own", "others", "now"), [(0, [7, 9], 7), (8, [7, 9], 8), (3, [], 3)])
def test_who_comes_back_gets_no_credit(own: float, others: list[float], now: float) -> None:
    assert caught_up(others, own) == now
