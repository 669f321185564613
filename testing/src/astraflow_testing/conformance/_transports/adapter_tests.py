"""Tests of a transport that declares ``adapter``."""

from __future__ import annotations

import pytest

from astraflow_testing.conformance._transports import tensors
from astraflow_testing.conformance._transports.transport_checks import arrives, demand, publish
from astraflow_testing.conformance._transports.transport_rig import TransportRig


class AdapterTests:
    """Part of :class:`astraflow_testing.conformance.transport.TransportConformance`."""

    def test_an_adapter_arrives_with_its_base(
        self, rig: TransportRig, flags: frozenset[str]
    ) -> None:
        if "adapter" not in flags:
            pytest.skip("the transport does not declare 'adapter'")
        publisher, receiver = rig.publisher(), rig.receiver()
        base = "0123456789abcdef" * 2
        for version in (1, 2, 3):
            published = tensors.adapter(version)
            told = publish(publisher, version, published, version - 1 or None, base)
            source = arrives(receiver, told, published)
            demand(
                (source.kind, source.base) == ("adapter", base),
                f"handed out a source of kind {source.kind!r} with base {source.base!r}",
                f"kind 'adapter' and the base {base!r} that it was published with",
            )
