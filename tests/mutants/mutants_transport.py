"""Transports with one mistake each, made of ``http``; their suite must fail every one."""

from __future__ import annotations

import itertools
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_core.errors import WeightsError
from astraflow_core.types import (
    Announcement,
    ComponentContext,
    ExportedTensor,
    Manifest,
    WeightSource,
)
from astraflow_plugin_http.config import HttpConfig
from astraflow_plugin_http.transport import HttpTransport
from astraflow_testing.conformance.transport import TransportConformance
from astraflow_weights.fetch.receiver import HttpReceiver
from astraflow_weights.publish.publisher import HttpPublisher
from astraflow_weights.shards.publisher import HttpShardPublisher


class Wrapped(HttpTransport):
    """``http`` with other halves: each delegates what it does not get wrong."""

    Config = HttpConfig
    capabilities = frozenset({"full", "cross_host"})
    Publishing: type[Publishing]
    Receiving: type[Receiving]

    def publisher(self) -> Any:
        return self.Publishing(super().publisher())

    def receiver(self) -> Any:
        return self.Receiving(super().receiver(), self._context)


class Publishing:
    """The publisher of ``http``."""

    def __init__(self, real: HttpPublisher) -> None:
        self.real = real

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self.real.endpoints

    def publish(
        self, version: int, tensors: Iterable[ExportedTensor], derives_from: int | None = None
    ) -> Manifest:
        return self.real.publish(version, tensors, derives_from)

    def retain(self, versions: frozenset[int]) -> None:
        self.real.retain(versions)

    def close(self) -> None:
        self.real.close()


class Receiving:
    """The receiver of ``http``."""

    def __init__(self, real: HttpReceiver, context: ComponentContext) -> None:
        self.real, self.context = real, context

    def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
        return self.real.fetch(announcement, deadline_s)

    def release(self, source: WeightSource) -> None:
        self.real.release(source)

    def close(self) -> None:
        self.real.close()


Wrapped.Publishing, Wrapped.Receiving = Publishing, Receiving


class Overwriting(Wrapped):
    class Publishing(Publishing):
        def publish(
            self, version: int, tensors: Iterable[ExportedTensor], derives_from: int | None = None
        ) -> Manifest:
            store = self.real._store
            if version in store.versions():
                store.newest = self.real._snapshotter.newest = version - 1
            return super().publish(version, tensors, derives_from)


class Forgetting(Wrapped):
    class Publishing(Publishing):
        def retain(self, versions: frozenset[int]) -> None:
            super().retain(frozenset())


class Hoarding(Wrapped):
    class Publishing(Publishing):
        def retain(self, versions: frozenset[int]) -> None:
            pass


class Lending(Wrapped):
    class Publishing(Publishing):
        def publish(
            self, version: int, tensors: Iterable[ExportedTensor], derives_from: int | None = None
        ) -> Manifest:
            return super().publish(version, list(tensors), derives_from)


class Flattening(Wrapped):
    class Publishing(Publishing):
        def publish(
            self, version: int, tensors: Iterable[ExportedTensor], derives_from: int | None = None
        ) -> Manifest:
            ones = (replace(t, shape=t.shape or (1,)) for t in tensors)
            return super().publish(version, ones, derives_from)


class Pulling(Publishing):
    """Drops what is read: the next publish fills the buffer that a slow reader still gets."""

    def retain(self, versions: frozenset[int]) -> None:
        store = self.real._store
        with store._lock:
            for version in set(store._held) - versions - {store.newest}:
                self.real._snapshotter.recycle(store._held.pop(version).snapshot.data)


class Tearing(Wrapped):
    Publishing = Pulling


class Waiting(Wrapped):
    class Publishing(Publishing):
        def publish(
            self, version: int, tensors: Iterable[ExportedTensor], derives_from: int | None = None
        ) -> Manifest:
            leased = self.real._store._held.values()
            end = time.monotonic() + 0.6
            while any(held.readers for held in leased) and time.monotonic() < end:
                time.sleep(0.02)
            return super().publish(version, tensors, derives_from)


class Trusting(Wrapped):
    class Receiving(Receiving):
        count = itertools.count()

        def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
            """One plain download; the digest is copied from the announcement without a check."""
            told = announcement
            url = f"{told.endpoints[0]}/v1/weights/{told.policy}/{told.version}/data"
            asked = urllib.request.Request(
                url, headers={"Authorization": f"Bearer {self.context.token}"}
            )
            path = self.real.folder.path / f"{next(self.count)}.safetensors"
            try:
                with urllib.request.urlopen(asked, timeout=deadline_s) as response:
                    path.write_bytes(response.read())
            except (OSError, urllib.error.URLError) as error:
                raise WeightsError(
                    f"version {told.version} of policy {told.policy!r}: {error}"
                ) from error
            return WeightSource(told.policy, told.version, path, told.digest, told.size, 0.0)


class Sharing(Wrapped):
    class Receiving(Receiving):
        def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
            source = super().fetch(announcement, deadline_s)
            return replace(source, path=source.path.rename(source.path.with_stem("current")))


class Littering(Wrapped):
    class Receiving(Receiving):
        def close(self) -> None:
            kept = Path(self.context.directory) / f"kept-{id(self)}"
            kept.mkdir(parents=True, exist_ok=True)
            for file in self.real.folder.path.glob("*.safetensors"):
                file.rename(kept / file.name)
            super().close()


class Open(Wrapped):
    def publisher(self) -> Any:
        publisher = super().publisher()
        publisher.real._server.token = ""
        return publisher


class Patient(Wrapped):
    class Receiving(Receiving):
        def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
            return super().fetch(announcement, deadline_s + 6)


class Leaking(Wrapped):
    class Receiving(Receiving):
        def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
            try:
                return super().fetch(announcement, deadline_s)
            except WeightsError as error:
                raise RuntimeError("fetch failed") from error


class Suite(TransportConformance):
    """The suite on a class of this file, which other processes import too."""

    transport: ClassVar[type[HttpTransport]]
    __test__ = False

    @pytest.fixture
    def table(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
        with ExitStack() as stack:
            stack.enter_context(monkeypatch.context()).syspath_prepend(str(Path(__file__).parent))
            yield {"use": f"{Path(__file__).stem}:{self.transport.__name__}", "streams": 1}


class TestHealthy(Suite):
    __test__ = True
    transport = Wrapped


class TestOverwriting(Suite):
    __test__ = True
    wrong = "a number that was used is published again over the old weights"
    transport = Overwriting


class TestForgetting(Suite):
    __test__ = True
    wrong = "retained versions are dropped"
    transport = Forgetting


class TestHoarding(Suite):
    __test__ = True
    wrong = "no version is ever dropped"
    transport = Hoarding


class TestLending(Suite):
    __test__ = True
    wrong = "tensors are collected before they are copied, when their buffer has been used again"
    transport = Lending


class TestFlattening(Suite):
    __test__ = True
    wrong = "scalars become vectors of one element"
    transport = Flattening


class TestTearing(Suite):
    __test__ = True
    wrong = "the buffer of a version is used again while a reader has a lease on it"
    transport = Tearing


class TestWaiting(Suite):
    __test__ = True
    wrong = "a publish waits for slow receivers"
    transport = Waiting


class TestTrusting(Suite):
    __test__ = True
    wrong = "what arrives is not verified"
    transport = Trusting


class TestSharing(Suite):
    __test__ = True
    wrong = "each fetch replaces the file of the one before, which an engine may be reading"
    transport = Sharing


class TestLittering(Suite):
    __test__ = True
    wrong = "a closed receiver leaves its files"
    transport = Littering


class TestOpen(Suite):
    __test__ = True
    wrong = "weights are served to whoever asks"
    transport = Open


class TestPatient(Suite):
    __test__ = True
    wrong = "a fetch ends six seconds after its deadline"
    transport = Patient


class TestLeaking(Suite):
    __test__ = True
    wrong = "failures are raised as whatever came up"
    transport = Leaking


class TestNoLink(Suite):
    __test__ = True
    wrong = "its faults are not examined, for want of a link to make them"
    caught_by = "test_every_declared_flag_is_tested"
    transport = Wrapped

    @pytest.fixture
    def link(self) -> Any:
        pytest.skip("no way to come between")


class Relaying(Wrapped):
    capabilities = frozenset({"full", "cross_host", "relay"})


class TestSkippedClaim(Suite):
    __test__ = True
    wrong = "claims to relay, and skips its own test of that"
    caught_by = "test_a_receiver_relays"
    transport = Relaying
    own_tests: ClassVar[dict[str, str]] = {"relay": "test_a_receiver_relays"}

    def test_a_receiver_relays(self) -> None:
        pytest.skip("one host only")


class Rearranging(Wrapped):
    capabilities = frozenset({"full", "cross_host", "sharded"})

    def shard_publisher(self, share: Callable[[bytes], list[bytes]]) -> HttpShardPublisher:
        context = self._context
        return HttpShardPublisher(
            context.policy, context.token, context.ranks, share,
            host="127.0.0.1", port=0, advertise=None, block_size=1 << 20,
        )  # fmt: skip


class TestRearranging(Suite):
    __test__ = True
    wrong = "a version has another digest if several ranks publish it"
    caught_by = "test_ranks_publish_what_one_publisher_would"
    transport = Rearranging
