"""The benchmark of a slow, bad link counts right; what it times is never asserted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bench.support.slow_link import possible

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.skipif(
    not possible(), reason="the slow link needs root: it makes network namespaces and TUN devices"
)
def test_every_version_that_crosses_a_bad_link_is_the_one_that_was_published(
    quick: Callable[[str], dict[str, Any]],
) -> None:
    fields = quick("wan_sync")
    assert fields["silent_errors"] == 0
    assert fields["full_over_ideal"] > 0
    # A flipped bit costs a block, a break what was on its way.
    assert 0 < fields["resent_fraction"] < 0.5
