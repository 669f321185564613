"""The deltas on offer: the last ones, and merged ones over 2, 4 and 8 of them, like a skip list."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping

from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.link import (
    INDEX,
    DeltaLink,
    LinkEntry,
    LinkHead,
    entry_of,
    open_link,
    pack_index,
)
from astraflow_plugin_delta.merge import merge

SPANS = (2, 4, 8)


class LinkLog:
    """Links that lead over at most ``history`` versions back, together no larger than what is served of one version:
    a longer way would cost more than the whole. Safe to use from several threads."""

    def __init__(self, history: int) -> None:
        self._history = history
        self._versions: list[int] = []
        self._links: dict[tuple[int, int], tuple[LinkEntry, bytes]] = {}
        self._count = 0
        self._most = 0
        self._lock = threading.Lock()

    def add(self, head: LinkHead, data: bytes, most: int) -> None:
        """A new version was published; ``data`` is the link to it, ``most`` how many bytes of it are served."""
        with self._lock:
            self._most = most
            if self._versions[-1:] != [head.base]:
                self._versions, self._count = [head.base], 0
                self._links.clear()
            self._versions.append(head.version)
            self._count += 1
            self._links[head.base, head.version] = entry_of(head, data), data
            self._trim()

    def merge(self, codec: Codec) -> None:
        """Make the merged links that end at the newest version: of every second one a link over two, of
        every fourth one over four, and so on. Each is merged from two existing ones."""
        with self._lock:
            versions, count = list(self._versions), self._count
        for span in SPANS:
            if count % span or span >= len(versions):
                return
            bounds = versions[-1 - span], versions[-1 - span // 2], versions[-1]
            with self._lock:
                parts = [self._links.get(pair) for pair in itertools.pairwise(bounds)]
            if None in parts:
                return
            links: list[DeltaLink] = [
                open_link(memoryview(part[1]), part[0]) for part in parts if part is not None
            ]
            merged, data = merge(codec, links)
            with self._lock:
                if versions[-1] in self._versions:
                    self._links[bounds[0], bounds[2]] = entry_of(merged.head, data), data
                    self._trim()

    def objects(self) -> Mapping[str, bytes]:
        """The side objects of a version published now: every link, and the list of them."""
        with self._lock:
            found = list(self._links.values())
        named = {entry.name: data for entry, data in found}
        return {INDEX: pack_index(entry for entry, _ in found), **named}

    def _trim(self) -> None:
        del self._versions[: -1 - self._history]
        while len(self._versions) > 1:
            kept = {pair: link for pair, link in self._links.items() if pair[0] in self._versions}
            self._links = kept
            if sum(entry.size for entry, _ in kept.values()) <= self._most:
                return
            del self._versions[0]
        self._links.clear()
