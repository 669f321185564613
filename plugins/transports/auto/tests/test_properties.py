"""What must hold of the choice whatever the facts are."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from astraflow_core.capabilities import pairing_problems
from astraflow_core.types import Announcement, Link, TransportChoice, TransportEnds
from astraflow_plugin_auto.choice import LEAST_SHARED, WHOLE_TOO, TransportFacts, choose

FLAGS = {
    "http": frozenset({"full", "adapter", "cross_host"}),
    "delta": frozenset({"full", "incremental", "cross_host"}),
    "shm": frozenset({"full", "adapter", "same_host"}),
    "zmq": frozenset({"full", "adapter", "cross_host"}),
    "disk": frozenset({"full", "cross_host"}),
    "collective": frozenset({"full", "collective", "cross_host"}),
    "cuda_ipc": frozenset({"full", "ipc", "same_host"}),
}
positive = st.floats(1e-3, 1e5)
links = st.builds(Link, mb_s=positive, round_trip_s=st.floats(0, 2))
sizes = st.integers(1, 10**13)


def told(transport: str) -> Announcement:
    return Announcement("solver", 1, transport, ("http://10.0.0.7:1",), "", 1 << 30)


ends = st.builds(
    TransportEnds,
    same_host=st.booleans(),
    shared_devices=st.booleans(),
    host=st.sampled_from([None, "10.0.0.7"]),
    engine=st.frozensets(
        st.sampled_from(["weights.path", "weights.collective", "weights.ipc", "adapter"])
    ),
    trainer=st.frozensets(st.sampled_from(["lora"])),
    transports=st.sets(st.sampled_from(sorted(FLAGS))).map(lambda n: {k: FLAGS[k] for k in n}),
    model_bytes=st.none() | sizes,
    announced=st.none() | st.sampled_from(sorted(FLAGS)).map(told),
)
facts = st.builds(
    TransportFacts,
    engine=st.just("engine"),
    trainer=st.just("trainer"),
    ends=ends,
    gpus=st.booleans(),
    shared_bytes=st.sampled_from([0, LEAST_SHARED]),
    link=st.none() | links,
)
AWAY = TransportEnds(False, False, "10.0.0.7", frozenset({"weights.path"}), frozenset(), FLAGS)


def use(link: Link, size: int) -> str:
    chosen = choose(TransportFacts("engine", "trainer", replace(AWAY, model_bytes=size), link=link))
    assert isinstance(chosen, TransportChoice)
    return chosen.use


@given(facts)
def test_what_is_chosen_is_what_both_sides_can_do(case: TransportFacts) -> None:
    chosen = choose(case)
    if isinstance(chosen, list):
        assert chosen and all(chosen)
        return
    flags, here = case.ends.transports[chosen.use], case.ends.same_host
    assert not pairing_problems(
        "transport", chosen.use, flags, "engine", "engine", case.ends.engine
    )
    assert here or "cross_host" in flags
    assert "lora" not in case.ends.trainer or "adapter" in flags
    assert case.gpus or not {"ipc", "collective"} & flags
    assert not here or not chosen.options
    if case.ends.announced is not None:
        spoken = case.ends.announced.transport
        assert chosen.use == spoken or (chosen.use == "http" and spoken in WHOLE_TOO)


@given(links, sizes, st.floats(1, 1e3))
@example(Link(mb_s=500.0, round_trip_s=0.0), 377, 3.0)
def test_a_quicker_link_is_no_reason_for_deltas_and_a_larger_model_none_against(
    link: Link, size: int, factor: float
) -> None:
    if use(link, size) == "http":
        assert use(replace(link, mb_s=link.mb_s * factor), size) == "http"
        # A delta sends one more request before it fetches.
        assert use(replace(link, round_trip_s=link.round_trip_s * factor), size) == "http"
    else:
        assert use(link, int(size * factor)) == "delta"
