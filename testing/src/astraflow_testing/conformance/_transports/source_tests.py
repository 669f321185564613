"""Tests of the sources that a transport returned, and of closing it."""

from __future__ import annotations

from contextlib import ExitStack

from astraflow_core.errors import WeightsError
from astraflow_testing.conformance._processes.footprint import Footprint
from astraflow_testing.conformance._transports import tensors
from astraflow_testing.conformance._transports.transport_checks import (
    DEADLINE_S,
    compare,
    demand,
    fetch,
    publish,
    refused,
)
from astraflow_testing.conformance._transports.transport_rig import TransportRig


class SourceTests:
    """Of every transport."""

    def test_a_source_stays_as_it_is_until_it_is_released(self, rig: TransportRig) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        published = {version: tensors.model(version, 1) for version in (1, 2)}
        first_told = publish(publisher, 1, published[1])
        first, twin = fetch(receiver, first_told), fetch(receiver, first_told)
        told = publish(publisher, 2, published[2])
        second = fetch(receiver, told)
        receiver.release(twin)
        publisher.close()
        compare(first, first_told, published[1])
        compare(second, told, published[2])
        receiver.release(second)
        compare(first, first_told, published[1])

    def test_release_and_close_leave_nothing_behind(self, rig: TransportRig) -> None:
        def cycle() -> None:
            with ExitStack() as stack:
                one = TransportRig(rig.table, rig.folder, stack)
                publisher, receiver = one.publisher(), one.receiver()
                for version in (1, 2):
                    source = fetch(receiver, publish(publisher, version, tensors.model(version, 1)))
                    if version == 1:
                        receiver.release(source)
                receiver.close()
                publisher.close()

        cycle()  # what libraries keep open from their first use on is not the transport's
        left: list[str] = []
        for _ in range(2):  # once may be another process of this user, in shared memory
            before = Footprint(rig.folder)
            cycle()
            if not (left := before.left_over()):
                return
        demand(False, f"left behind: {'; '.join(left)}", "that close removes everything")

    def test_after_close_nothing_is_handed_out(self, rig: TransportRig) -> None:
        publisher, receiver, other = rig.publisher(), rig.receiver(), rig.receiver("raas-other")
        told = publish(publisher, 1, tensors.model(1, 1))
        receiver.close()
        with refused(WeightsError, "a closed receiver fetched"):
            receiver.fetch(told, DEADLINE_S)
        publisher.close()
        with refused(WeightsError, "a closed publisher served", within_s=1.0):
            other.fetch(told, 1.0)
