"""How many episodes a RaaS takes, by what its engines say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from astraflow_runtime.raas.admission import AdmissionLimit

GAUGES = st.fixed_dictionaries(
    {"running": st.integers(0, 200), "waiting": st.integers(0, 400)},
    optional={"kv_cache_usage": st.floats(0, 1)},
)


def looks(admission, times, episodes, **gauges):
    for _ in range(times):
        admission.observe(episodes, {"solver": gauges})
    return admission.limit


def test_a_queue_brings_it_down_to_what_runs_and_some_spare():
    admission = AdmissionLimit(most=256, least=8)
    assert looks(admission, 2, 256, running=64, waiting=192) == 80
    assert "192 requests wait while 64" in admission.reason and "'solver'" in admission.reason
    assert looks(admission, 5, 80, running=64, waiting=16) == 80, "the spare may wait"


def test_a_queue_that_is_seen_once_is_a_swap_of_weights():
    admission = AdmissionLimit(most=256, least=8)
    looks(admission, 1, 256, running=8, waiting=248)
    assert looks(admission, 1, 256, running=200, waiting=10) == 256


def test_it_grows_again_while_nothing_waits():
    admission = AdmissionLimit(most=64, least=8)
    assert looks(admission, 2, 64, running=8, waiting=56) == 10
    assert looks(admission, 1, 10, running=8, waiting=0) == 13
    assert looks(admission, 20, 13, running=8, waiting=0) == 64 and not admission.reason


def test_a_full_cache_lets_no_more_in():
    admission = AdmissionLimit(most=256, least=8)
    assert looks(admission, 3, 40, running=40, waiting=0, kv_cache_usage=0.97) == 40
    assert "KV cache is 97% full" in admission.reason


def test_the_policy_with_the_longest_queue_counts():
    admission = AdmissionLimit(most=100, least=4)
    for _ in range(2):
        admission.observe(
            100,
            {"solver": {"running": 50, "waiting": 0}, "judge": {"running": 10, "waiting": 40}},
        )
    assert admission.limit == 25 and "'judge'" in admission.reason


@given(
    st.integers(1, 300),
    st.integers(1, 64),
    st.lists(st.tuples(st.integers(0, 300), st.dictionaries(st.sampled_from("ab"), GAUGES))),
)
def test_it_stays_between_a_group_and_the_most(most, least, seen):
    admission = AdmissionLimit(most, least)
    for episodes, gauges in seen:
        admission.observe(episodes, gauges)
        assert min(most, least) <= admission.limit <= most
