"""Where a version is fetched from, and what that costs, over all RaaS."""

from __future__ import annotations

from typing import Any

from astraflow_core.dataflow.fleet import Fleet
from astraflow_core.wire.messages import RegisterRaas


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


def test_the_status_says_where_the_newest_version_is_until_its_publisher_is_gone(
    bench: Any,
) -> None:
    b = bench()

    def announced() -> Any:
        return b.flow.status()["policies"]["solver"]["announced"]

    b.begin()
    b.announce(1)
    assert announced() == {
        "policy": "solver",
        "version": 1,
        "transport": "x",
        "endpoints": ["e"],
        "digest": "d1",
        "size": 1,
    }
    b.state.versions.withdraw("solver")
    assert announced() is None
    b.announce(2)
    assert announced()["version"] == 2
