"""The RaaS's half: brings a version it has to the one it wants, and verifies every block of the result."""

from __future__ import annotations

import itertools
import logging
import mmap
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import xxhash

from astraflow_core.types import Announcement, Manifest, WeightSource
from astraflow_plugin_delta import paths
from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.link import (
    INDEX,
    MAX_INDEX,
    BadLink,
    DeltaLink,
    LinkEntry,
    open_index,
    open_link,
)
from astraflow_plugin_delta.patch import patch
from astraflow_weights.failures import PublisherFailed
from astraflow_weights.fetch.client import VersionClient
from astraflow_weights.fetch.receiver import HttpReceiver
from astraflow_weights.fetch.recycled_file import OpenFile
from astraflow_weights.fetch.shard_download import from_each

CACHED_LINKS = 4
"""Links kept of each source, so that the file of the version before the last can be patched twice without fetching."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class VerifiedFile:
    """A verified file: of a source that is handed out, or kept after its release to be patched."""

    policy: str
    version: int
    digest: str
    size: int
    path: Path
    mapping: mmap.mmap | None = None
    readers: int = 0

    @property
    def state(self) -> paths.State:
        """Which bytes these are."""
        return self.version, self.digest


class _Here(threading.local):
    """The fetch of this thread: the version that its file was, and the mapping if it was patched."""

    inside: VerifiedFile | None = None
    mapping: mmap.mmap | None = None


class DeltaReceiver(HttpReceiver):
    """Fetches versions by deltas where it can, else whole; see
    :class:`astraflow_core.protocols.transport.Receiver`.

    Two files take turns: one is handed out, the other, released before, is patched in place. Until there
    is a second, blocks are copied as they are patched. A file that was patched stays mapped, since mapping
    it again costs more than patching it.
    """

    def __init__(self, directory: Path, token: str, *, streams: int, codec: Codec) -> None:
        super().__init__(directory, token, streams=streams)
        self._codec = codec
        self._guard = threading.Lock()
        self._handed_out: dict[Path, VerifiedFile] = {}
        self._spares: dict[str, VerifiedFile] = {}
        self._here = _Here()
        self._cache: dict[bytes, bytearray] = {}

    def fetch(self, announcement: Announcement, deadline_s: float) -> WeightSource:
        """Fetch and verify a version, from each endpoint in turn until one has delivered the rest."""
        try:
            source = super().fetch(announcement, deadline_s)
            held = VerifiedFile(
                source.policy, source.version, source.digest, announcement.size, source.path,
                self._here.mapping,
            )  # fmt: skip
        finally:
            self._here.inside = self._here.mapping = None
        with self._guard:
            self._handed_out[source.path] = held
        return source

    def close(self) -> None:
        """End running fetches and delete every file; closing twice is allowed."""
        super().close()
        with self._guard:
            self._handed_out.clear()
            self._spares.clear()
            self._cache.clear()

    def open(self, partial: Path, announcement: Announcement) -> OpenFile:
        """A released file of the same size, to be patched in place, or a new one."""
        with self._guard:
            spare = self._spares.pop(announcement.policy, None)
        if spare is None or spare.size != announcement.size:
            if spare is not None:
                spare.path.unlink(missing_ok=True)
            return super().open(partial, announcement)
        spare.path.rename(partial)
        self._here.inside = spare
        return OpenFile(partial.open("r+b"))

    def discard(self, source: WeightSource) -> None:
        """Keep the file to be patched, if it is newer than the one kept and has no readers."""
        with self._guard:
            held = self._handed_out.pop(source.path, None)
            kept = self._spares.get(source.policy)
            if held is None or held.readers or (kept and kept.version > held.version):
                drop: Path | None = source.path
            else:
                drop = kept.path if kept else None
                hidden = source.path.with_suffix(".spare")
                held.path = source.path.rename(hidden)
                self._spares[source.policy] = held
        if drop is not None:
            drop.unlink(missing_ok=True)

    def prepare(self, client: VersionClient, manifest: Manifest, file: int) -> set[int]:
        """Patch what the receiver has; returns the blocks whose hash is right then."""
        with ExitStack() as stack:
            inside, self._here.inside = self._here.inside, None
            base = self._bases(manifest.policy, inside, stack)
            if not base:
                return set()
            try:
                sources = client.sources or (client,)
                start, found = self._paths(sources, manifest, list(base))
                most = CACHED_LINKS * len(sources)
                each = from_each(
                    lambda source, path: [self._link(source, link, most) for link in path.links],
                    sources,
                    found,
                )
                links = list(itertools.chain.from_iterable(each))
            except (BadLink, PublisherFailed) as error:
                log.warning(
                    "version %d of policy %r is fetched whole: %s",
                    manifest.version, manifest.policy, error,
                )  # fmt: skip
                return set()
            source = base[start]
            if source is inside:
                mapping = source.mapping or mmap.mmap(file, 0)
                self._here.mapping = mapping
            else:
                with source.path.open("rb") as opened:
                    mapping = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
            with memoryview(mapping) as view:
                good = patch(
                    self._codec, links, manifest, view, None if source is inside else file,
                    client.raise_if_stopped,
                )  # fmt: skip
        log.info(
            "version %d of policy %r: patched from version %d by %d deltas of %d bytes, %d of %d blocks "
            "come whole",
            manifest.version, manifest.policy, start[0], len(links), sum(path.cost for path in found),
            len(manifest.blocks) - len(good), len(manifest.blocks),
        )  # fmt: skip
        return good

    def _bases(
        self, policy: str, inside: VerifiedFile | None, stack: ExitStack
    ) -> dict[paths.State, VerifiedFile]:
        """What can be patched: first the content of the file itself, if it was a version, then what is
        handed out, which is not patched by others until ``stack`` ends."""
        found = {inside.state: inside} if inside else {}
        with self._guard:
            for held in self._handed_out.values():
                if held.policy == policy and held.state not in found:
                    found[held.state] = held
                    held.readers += 1
                    stack.callback(self._release, held)
        return found

    def _release(self, held: VerifiedFile) -> None:
        with self._guard:
            held.readers -= 1

    def _paths(
        self, sources: Sequence[VersionClient], manifest: Manifest, held: list[paths.State]
    ) -> tuple[paths.State, list[paths.Path]]:
        """The version to start from with the cheapest ways from it, one for each source: what one of several offers
        concerns its own blocks only."""
        lists = from_each(lambda source: open_index(source.read(INDEX, MAX_INDEX)), sources)
        with self._guard:
            cached = set(self._cache)
        wanted = manifest.version, manifest.digest
        offers: list[tuple[int, int, list[paths.Path]]] = []
        for order, state in enumerate(held):
            ways = [paths.cheapest(entries, [state], cached, wanted) for entries in lists]
            known = [way for way in ways if way is not None]
            if len(known) == len(lists):
                offers.append((sum(way.cost for way in known), order, known))
        if not offers:
            has = ", ".join(str(version) for version, _ in sorted(held))
            raise BadLink(f"no deltas lead to it from the local version ({has})")
        cost, _, found = min(offers, key=lambda offer: offer[:2])
        start = found[0].start
        longest = max((entry.size for path in found for entry in path.links), default=0)
        if cost >= manifest.size or longest > manifest.size:
            raise BadLink(f"deltas of {cost} bytes from version {start[0]} are not smaller than it")
        return start, found

    def _link(self, client: VersionClient, entry: LinkEntry, most: int) -> DeltaLink:
        """A link, from the cache of ``most`` or fetched; a second time if it arrives damaged. What is damaged then
        shows in its frames."""
        with self._guard:
            if (cached := self._cache.get(entry.checksum)) is not None:
                return open_link(memoryview(cached), entry)
        data = bytearray(entry.size)
        for attempt in (1, 2):
            client.read_into(entry.name, memoryview(data))
            if xxhash.xxh3_128_digest(data) == entry.checksum:
                with self._guard:
                    self._cache[entry.checksum] = data
                    while len(self._cache) > most:
                        del self._cache[next(iter(self._cache))]
                break
            log.warning("the delta %s arrived damaged, attempt %d of 2", entry.name, attempt)
        return open_link(memoryview(data), entry)
