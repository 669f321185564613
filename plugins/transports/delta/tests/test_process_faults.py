"""Transport ``delta`` between processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.weight_faults import BLOCK, TransportWorld, WeightFaults

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class TestDelta(WeightFaults):
    @classmethod
    def table(cls, folder: Path) -> dict[str, Any]:
        return {"use": "delta", "kernel": "numpy"}

    def test_a_bit_that_flips_where_the_receiver_holds_the_base(
        self, world: TransportWorld
    ) -> None:
        told = world.publisher.publish(world.next_version())
        came = world.receiver.fetch(told)
        self.arrives(came, told.version)
        with Path(came["got"][0]["path"]).open("r+b") as file:
            file.seek(BLOCK + 1000)
            byte = file.read(1)[0]
            file.seek(BLOCK + 1000)
            file.write(bytes([byte ^ 4]))
        for how in ({"keep": True}, {}):  # copied, and then patched in place
            newer = world.publisher.publish(world.next_version())
            answer = world.receiver.fetch(newer, **how)
            self.arrives(answer, newer.version)
