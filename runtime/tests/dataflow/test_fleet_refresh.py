"""Where a version is fetched from, and what that costs, over all RaaS."""

from __future__ import annotations

from typing import Any

from astraflow_core.types import Announcement
from astraflow_runtime.dataflow.fleet.raas import Fleet
from astraflow_wire.messages import RegisterRaas, RenewLeases


def test_a_fetch_is_the_mean_over_every_raas() -> None:
    fleet = Fleet(10.0, 100.0)
    for name, swaps in (("near", 3.0), ("far", 1.0)):
        record = fleet.register(RegisterRaas(name, 1, "host", ["solver"], 4), {}, 0.0)
        record.metrics = {
            "solver/swaps": swaps,
            "solver/pull_s": 2.0,
            "solver/bytes_received": 6e6,
            "solver/load_s": 1.0,
            "other/bytes_received": 1e9,
        }
    expected = {"swaps": 4.0, "pull_s": 1.0, "pull_mb": 3.0, "swap_s": 0.5}
    assert fleet.refresh("solver") == expected
    near, far = fleet.present()
    near.metrics |= {"solver/link_mb_s": 900.0, "solver/link_s": 0.001}
    far.metrics |= {"solver/link_mb_s": 0.0, "solver/link_s": 0.0}
    assert fleet.refresh("solver") == {**expected, "link_mb_s": 900.0, "link_s": 0.001}
    far.metrics |= {"solver/link_mb_s": 40.0, "solver/link_s": 0.3}
    assert fleet.refresh("solver") == {**expected, "link_mb_s": 40.0, "link_s": 0.3}
    assert fleet.refresh("third") == {"swaps": 0.0, "pull_s": 0.0, "pull_mb": 0.0, "swap_s": 0.0}


def test_drafts_are_those_of_every_raas_that_speculates() -> None:
    fleet = Fleet(10.0, 100.0)
    for name, drafted, accepted in (("one", 100.0, 40.0), ("two", 300.0, 60.0), ("none", None, 0)):
        record = fleet.register(RegisterRaas(name, 1, "host", ["solver"], 4), {}, 0.0)
        record.metrics = {"solver/decoded_rows": 200.0, "solver/accepted_tokens": accepted}
        if drafted is not None:
            record.metrics["solver/drafted_tokens"] = drafted
    expected = {"drafted": 400.0, "accepted": 100.0, "forwards_per_token": 0.8}
    assert fleet.drafts("solver") == expected
    assert fleet.drafts("other") == {}


def test_the_status_says_where_the_newest_version_is_until_its_publisher_is_gone(
    bench: Any,
) -> None:
    b = bench()

    def announced() -> Any:
        return b.flow.status().policies["solver"].announced

    b.begin()
    b.announce(1)
    assert announced() == Announcement(
        policy="solver",
        version=1,
        transport="x",
        endpoints=("e",),
        digest="d1",
        size=1,
    )
    b.state.versions.withdraw("solver")
    assert announced() is None
    b.announce(2)
    assert announced().version == 2


def test_tokens_that_cannot_have_been_generated_are_dropped_and_reported_once(
    bench: Any, caplog: Any
) -> None:
    b = bench().begin()

    def beat(tokens: float | None, raas: str = "r0", later: float = 5.0) -> float:
        b.pass_time(later)
        metrics = {} if tokens is None else {"tokens_generated": tokens}
        versions = {"solver": 0}
        b.flow.leasing.renew(
            RenewLeases(raas=raas, tasks=[], serving=versions, seen=versions, metrics=metrics)
        )
        return b.state.fleet.tokens_generated

    assert beat(1e6) == 1e6
    assert beat(None) == 1e6 and beat(1.5e6) == 1.5e6
    for _ in range(3):
        assert beat(2.0**53) == 1.5e6
    warnings = [r.getMessage() for r in caplog.records if "tokens" in r.getMessage()]
    assert len(warnings) == 1 and "RaaS 'r0' reports 9007199" in warnings[0]
    assert beat(2e6) == 2e6
    assert beat(5e5) == 2.5e6, "another process of that name counts from zero"
    b.register_raas("r1")
    assert beat(7e6, "r1") == 9.5e6
    b.register_raas("r1")
    assert beat(8e6, "r1") == 10.5e6, "the same process counts on"
    assert beat(3e8, "r1") == 10.5e6
    assert beat(3e8, "r1", later=25.0) == 302.5e6, "by then it can be true"
