"""Conformance of a weight transport: versions arrive complete and bitwise as published, or not at all.

A transport's tests inherit :class:`TransportConformance`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import xxhash

from astraflow_core.catalog import Catalog
from astraflow_core.errors import AstraFlowError, WeightsError
from astraflow_core.protocols.transport import Publisher, Receiver
from astraflow_core.types import ExportedTensor
from astraflow_testing.conformance._checks import assert_not_skipped
from astraflow_testing.conformance._processes.footprint import memory_in_use
from astraflow_testing.conformance._processes.waiting import waited
from astraflow_testing.conformance._transports import tensors
from astraflow_testing.conformance._transports.adapter_tests import AdapterTests
from astraflow_testing.conformance._transports.link import EncryptedLink, ShapedLink, TcpLink
from astraflow_testing.conformance._transports.shard_tests import ShardTests
from astraflow_testing.conformance._transports.source_tests import SourceTests
from astraflow_testing.conformance._transports.transport_checks import (
    DEADLINE_S,
    GRACE_S,
    PATIENCE_S,
    arrives,
    compare,
    demand,
    fetch,
    holding,
    outcome,
    publish,
    refused,
    refused_or_right,
    stands_still,
)
from astraflow_testing.conformance._transports.transport_rig import (
    POLICY,
    TransportRig,
    announcement,
)
from astraflow_testing.conformance.subject import Conformance
from astraflow_wire.model_files.tensor_file import read_specs

__all__ = ["EncryptedLink", "ShapedLink", "TcpLink", "TransportConformance"]

HELD_AT = 1 << 16
"""Bytes after which a slow fetch stalls: the manifest has arrived, most of the data has not."""


class TransportConformance(Conformance, SourceTests, AdapterTests, ShardTests):
    """Inherit it and return from the fixture ``table`` the table that a run would have for your
    transport::

        class TestHttp(TransportConformance):
            @pytest.fixture
            def table(self):
                return {"use": "http", "streams": 2}

    ``use`` may be ``"module:attr"``. Flags are those that the manifest declares. A transport whose
    endpoints are not ``scheme://host:port`` overrides the fixture ``link`` too. A flag that this suite
    cannot show (a collective's receiving half runs in an engine) has a test in ``own_tests``.
    """

    _shown: ClassVar[dict[str, str]] = {
        "full": "test_every_dtype_and_shape_arrives_bit_by_bit",
        "incremental": "test_an_update_is_smaller_than_the_whole",
        "adapter": "test_an_adapter_arrives_with_its_base",
        "sharded": "test_ranks_publish_what_one_publisher_would",
        "same_host": "test_another_process_fetches_and_opens_it",
        "cross_host": "test_a_wrong_token_is_refused",
    }

    @pytest.fixture
    def table(self) -> Mapping[str, Any]:
        """The only required fixture."""
        pytest.fail(
            "override the fixture `table`: return the transport's table of a config, "
            'such as {"use": "http", "streams": 2}'
        )

    @pytest.fixture
    def link(self) -> Iterator[Callable[[Publisher], ShapedLink]]:
        """Puts a link before a publisher; see :class:`ShapedLink`."""
        with ExitStack() as stack:
            yield lambda publisher: stack.enter_context(closing(TcpLink(publisher.endpoints)))

    @pytest.fixture
    def rig(self, table: Mapping[str, Any], tmp_path: Path) -> Iterator[TransportRig]:
        """Halves of the transport that are closed when the test ends."""
        with ExitStack() as stack:
            yield TransportRig(table, tmp_path, stack)

    @pytest.fixture
    def flags(self, table: Mapping[str, Any]) -> frozenset[str]:
        """The capabilities in the transport's manifest."""
        return Catalog.discover().flags("transport", table["use"])

    # --- what arrives --------------------------------------------------------------------------

    def test_every_dtype_and_shape_arrives_bit_by_bit(self, rig: TransportRig) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        for version in (1, 2):
            published = tensors.every_dtype(version)
            arrives(receiver, publish(publisher, version, published), published)

    def test_large_tensors_arrive_whatever_the_order_of_export(self, rig: TransportRig) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        for version in (1, 2):
            published = tensors.model(version)
            order = published if version == 1 else published[::-1]
            arrives(receiver, publish(publisher, version, order), published)

    def test_the_snapshot_is_taken_while_tensors_are_valid(self, rig: TransportRig) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        for version in (1, 2, 3):
            published = tensors.model(version, 1)
            told = publish(publisher, version, tensors.through_one_buffer(published))
            arrives(receiver, told, published)

    def test_small_changes_arrive_over_versions_that_were_skipped(self, rig: TransportRig) -> None:
        publisher, steady, late = rig.publisher(), rig.receiver(), rig.receiver("raas-late")
        published = tensors.model(1, 1)
        for version in range(1, 7):
            told = publish(publisher, version, published, derives_from=version - 1 or None)
            publisher.retain(frozenset({version - 1}))
            arrives(steady, told, published)
            if version in (2, 6):
                arrives(late, told, published)
            published = tensors.changed(published, version)

    def test_an_update_is_smaller_than_the_whole(
        self, rig: TransportRig, flags: frozenset[str]
    ) -> None:
        if "incremental" not in flags:
            pytest.skip("the transport does not declare 'incremental'")
        publisher, receiver = rig.publisher(), rig.receiver()
        published = tensors.model(1)
        whole = fetch(receiver, publish(publisher, 1, published))
        update = tensors.changed(published, 1)
        told = publish(publisher, 2, update, derives_from=1)
        part = arrives(receiver, told, update)
        demand(
            part.bytes_received < whole.bytes_received / 4,
            f"moved {part.bytes_received} bytes for a change of 0.1 % of {told.size}",
            "less than a quarter of the whole from a transport that declares 'incremental'",
        )

    def test_the_manifest_describes_what_arrives(self, rig: TransportRig) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        manifest = publisher.publish(4, tensors.model(4), derives_from=3)
        source = fetch(receiver, announcement(manifest, publisher.endpoints))
        data = source.path.read_bytes()
        size = manifest.block_size
        blocks = tuple(
            xxhash.xxh3_128_digest(data[at : at + size]) for at in range(0, len(data), size)
        )
        facts: dict[str, tuple[object, object]] = {
            "policy": (manifest.policy, POLICY),
            "version": (manifest.version, 4),
            "kind": (manifest.kind, "full"),
            "derives_from": (manifest.derives_from, 3),
            "size": (manifest.size, len(data)),
            "tensors": (manifest.tensors, read_specs(memoryview(data))),
            "blocks": (manifest.blocks, blocks),
            "digest": (manifest.digest, xxhash.xxh3_128_hexdigest(b"".join(blocks))),
            "source": (
                (source.policy, source.version, source.digest),
                (POLICY, 4, manifest.digest),
            ),
        }
        for name, (found, expected) in facts.items():
            demand(
                found == expected,
                f"says {name} = {str(found)[:200]}",
                f"{str(expected)[:200]}, which the received file shows",
            )

    def test_another_process_fetches_and_opens_it(
        self, rig: TransportRig, flags: frozenset[str], tmp_path: Path
    ) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        told = publish(publisher, 1, tensors.model(1))
        source = fetch(receiver, told)
        home = tmp_path / "another-host" if "cross_host" in flags else rig.folder
        peer = rig.receiving_peer(home, told, DEADLINE_S)
        peer.told()
        there = peer.told(DEADLINE_S + GRACE_S)
        demand(
            tensors.read_elsewhere(Path(there["path"])) == tensors.read_elsewhere(source.path),
            "gave two processes different files",
            "a safetensors file that any process of the host can open",
        )

    # --- versions ------------------------------------------------------------------------------

    def test_numbers_only_grow_and_a_version_never_changes(self, rig: TransportRig) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        published = tensors.model(1, 1)
        told = publish(publisher, 5, published)
        for version in (5, 4, 0):
            with refused(AstraFlowError, f"version {version} was published after 5"):
                publisher.publish(version, tensors.model(9, 1))
        arrives(receiver, told, published)

    def test_a_failed_export_keeps_the_last_version(self, rig: TransportRig) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        published = tensors.model(1, 1)
        told = publish(publisher, 1, published)

        def broken() -> Iterator[ExportedTensor]:
            yield tensors.model(2, 1)[0]
            raise ArithmeticError("the export failed")

        with suppress(ArithmeticError, AstraFlowError):
            publisher.publish(2, broken())
            demand(False, "published an export that failed", "an error and nothing published")
        arrives(receiver, told, published)
        with refused(WeightsError, "a version whose export failed was fetched"):
            receiver.fetch(replace(told, version=2), DEADLINE_S)
        arrives(receiver, publish(publisher, 3, published), published)

    def test_retained_versions_stay_and_others_are_refused_or_right(
        self, rig: TransportRig
    ) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        published = {version: tensors.model(version, 1) for version in range(1, 5)}
        told = {v: publish(publisher, v, published[v]) for v in (1, 2, 3)}
        publisher.retain(frozenset({1}))
        told[4] = publish(publisher, 4, published[4])
        publisher.retain(frozenset({1, 4}))
        for version in (1, 4):
            arrives(receiver, told[version], published[version])
        publisher.retain(frozenset())
        arrives(receiver, told[4], published[4])
        for version in (1, 2, 3):
            with refused_or_right(told[version], published[version]) as got:
                got.append(receiver.fetch(told[version], DEADLINE_S))
        with refused(WeightsError, "a version was fetched that was never published", naming="77"):
            receiver.fetch(replace(told[4], version=77), DEADLINE_S)

    def test_versions_published_during_a_slow_fetch_do_not_touch_it(
        self, rig: TransportRig, link: Callable[[Publisher], ShapedLink], flags: frozenset[str]
    ) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        published, newer = tensors.model(1), tensors.model(2)
        manifest = publisher.publish(1, published)
        slow = holding(link(publisher), flags)
        with ThreadPoolExecutor(1) as pool, closing(slow), ExitStack() as stack:
            unread = TransportRig(rig.table, rig.folder / "unread", stack).publisher()
            unread.publish(1, published)
            held = slow.hold(HELD_AT)
            told = announcement(manifest, slow.endpoints)
            fetched = pool.submit(receiver.fetch, told, PATIENCE_S)
            stands_still(held)
            read_s, unread_s = 0.0, 0.0
            for version in range(2, 12):  # by turns, so that a busy machine holds both up alike
                read_s += waited(partial(publisher.publish, version, newer))
                publisher.retain(frozenset())
                unread_s += waited(partial(unread.publish, version, newer))
                unread.retain(frozenset())
            demand(
                read_s < unread_s + 2,
                f"waited {read_s:.1f} s in ten publishes beside a slow receiver, {unread_s:.1f} s without one",
                "waiting for the snapshot only",
            )
            slow.release()
            compare(outcome(fetched), told, published)

    def test_fetching_while_publishing_gives_whole_versions(self, rig: TransportRig) -> None:
        publisher = rig.publisher()
        published = {version: tensors.model(version, 1) for version in range(1, 13)}
        newest = [publish(publisher, 1, published[1])]
        over, end = threading.Event(), time.monotonic() + DEADLINE_S

        def follow(receiver: Receiver) -> int:
            count = 0
            while not (over.is_set() and count) and time.monotonic() < end:
                told = newest[0]  # it stays at the end, so even a slow machine gets to it
                with refused_or_right(told, published[told.version]) as got:
                    got.append(receiver.fetch(told, DEADLINE_S))
                count += len(got)
                for source in got:
                    receiver.release(source)
            return count

        with ThreadPoolExecutor(3) as pool:
            following = [pool.submit(follow, rig.receiver(f"raas-{n}")) for n in range(3)]
            for version in range(2, 13):
                newest[0] = publish(publisher, version, published[version])
                publisher.retain(frozenset())
                time.sleep(0.02)
            over.set()
            counts = [each.result(2 * DEADLINE_S) for each in following]
        demand(min(counts) > 0, f"served receivers {counts} versions", "several readers at once")

    def test_memory_of_dropped_versions_comes_back(self, rig: TransportRig) -> None:
        publisher = rig.publisher()
        published = tensors.model(1, 8)
        before = size = 0
        for version in range(1, 12):
            size = publisher.publish(version, published).size
            publisher.retain(frozenset())
            if version == 3:
                before = memory_in_use(rig.folder)
        grown = memory_in_use(rig.folder) - before
        demand(
            grown < 4 * size,
            f"holds {grown / size:.1f} models more after 8 more versions",
            "that versions are dropped once they are neither retained nor read",
        )

    # --- faults --------------------------------------------------------------------------------

    @pytest.mark.parametrize("times", [1, 1_000_000], ids=["once", "always"])
    def test_a_flipped_byte_never_arrives(
        self, rig: TransportRig, link: Callable[[Publisher], ShapedLink], times: int
    ) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        published = tensors.model(1)
        manifest = publisher.publish(1, published)
        with closing(link(publisher)) as bad:
            bad.flip(tensors.marker_of(published), times)
            told = announcement(manifest, bad.endpoints)
            with refused_or_right(told, published) as got:
                got.append(receiver.fetch(told, DEADLINE_S))
            demand(
                bad.flipped > 0,
                "sent the weights so that the suite's link found no byte of theirs to flip",
                "a fixture `link` that flips one",
            )
            demand(times == 1 or not got, "accepted a byte that was always flipped", "an error")

    def test_the_announced_digest_is_checked(self, rig: TransportRig) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        told = publish(publisher, 1, tensors.model(1, 1))
        other = tensors.model(2, 1)
        with ExitStack() as stack:
            stranger = TransportRig(rig.table, rig.folder / "stranger", stack).publisher()
            wrong = [
                replace(told, digest="0" * 32),
                replace(told, endpoints=publish(stranger, 1, other).endpoints),
            ]
            for each in wrong:
                with refused(
                    WeightsError, "weights arrived that do not match the announced digest"
                ):
                    receiver.fetch(each, DEADLINE_S)

    def test_a_publisher_that_stalls_meets_the_deadline(
        self, rig: TransportRig, link: Callable[[Publisher], ShapedLink], flags: frozenset[str]
    ) -> None:
        publisher, receiver = rig.publisher(), rig.receiver()
        manifest = publisher.publish(1, tensors.model(1))
        with closing(holding(link(publisher), flags)) as stalled:
            stalled.hold(HELD_AT)
            with refused(WeightsError, "a stalled publisher delivered", within_s=0.7):
                receiver.fetch(announcement(manifest, stalled.endpoints), 0.7)

    def test_a_killed_publisher_is_an_error_in_time(self, rig: TransportRig) -> None:
        receiver = rig.receiver()
        peer, told = rig.publishing_peer()
        arrives(receiver, told, tensors.model(1))
        peer.kill()
        with refused(WeightsError, "a killed publisher delivered", within_s=1.0):
            rig.receiver("raas-late").fetch(told, 1.0)

    def test_a_killed_receiver_disturbs_nobody(
        self,
        rig: TransportRig,
        link: Callable[[Publisher], ShapedLink],
        flags: frozenset[str],
        tmp_path: Path,
    ) -> None:
        publisher = rig.publisher()
        published = tensors.model(1)
        manifest = publisher.publish(1, published)
        home = tmp_path / "killed"
        with closing(holding(link(publisher), flags)) as slow:
            held = slow.hold(HELD_AT)
            peer = rig.receiving_peer(home, announcement(manifest, slow.endpoints), DEADLINE_S)
            peer.told()
            stands_still(held)
            peer.kill()
        update = tensors.model(2)
        told = publish(publisher, 2, update)
        arrives(rig.receiver(), told, update)
        with ExitStack() as stack:  # the next in its place clears what it left
            arrives(TransportRig(rig.table, home, stack).receiver("receiver"), told, update)
        demand(
            not (left := [p for p in home.rglob("*") if p.is_file()]),
            f"left {', '.join(p.name for p in left)} of a killed receiver",
            "that the next receiver in the same folder removes the files that a killed one left",
        )

    def test_a_wrong_token_is_refused(self, rig: TransportRig, flags: frozenset[str]) -> None:
        if "cross_host" not in flags:
            pytest.skip("the transport does not declare 'cross_host'")
        publisher = rig.publisher()
        told = publish(publisher, 1, tensors.model(1, 1))
        for token in ("another", ""):
            with refused(WeightsError, f"a receiver with the token {token!r} was served"):
                rig.receiver(f"stranger{token}", token).fetch(told, DEADLINE_S)

    # --- flags ---------------------------------------------------------------------------------

    def test_every_declared_flag_is_tested(
        self, flags: frozenset[str], request: pytest.FixtureRequest
    ) -> None:
        assert_not_skipped(request, ("link",))
        shown = {**self._shown, **self.own_tests}
        missing = [f for f in sorted(flags) if not callable(getattr(self, shown.get(f, ""), None))]
        demand(
            not missing,
            f"declares {', '.join(missing)}, which no test here covers",
            "a test for each: write one in the subclass and name it in `own_tests`",
        )
