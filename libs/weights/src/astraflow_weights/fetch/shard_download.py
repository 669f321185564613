"""Fetches a version from several publishers at once, each of which serves a part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from astraflow_core.types import Manifest, Source
from astraflow_weights.failures import PublisherFailed
from astraflow_weights.fetch.client import VersionClient
from astraflow_weights.fetch.download import Blocks, download
from astraflow_weights.fetch.recycled_file import OpenFile

MOST_AT_ONCE = 64
"""Sources that one receiver fetches from at the same time."""


T = TypeVar("T")


class _Among:
    """Of the blocks, only some are wanted: the others count as done."""

    def __init__(self, done: Blocks, wanted: set[int]) -> None:
        self._done, self._wanted = done, wanted

    def __contains__(self, block: object) -> bool:
        return block not in self._wanted or block in self._done

    def add(self, block: int) -> None:
        self._done.add(block)


def download_from(
    client: VersionClient, manifest: Manifest, opened: OpenFile, done: Blocks
) -> None:
    """:func:`astraflow_weights.fetch.download.download` from the sources of ``client`` at once, of each what it
    serves. If one fails the others still deliver; then :class:`PublisherFailed` says who
    did not deliver what."""

    def fetch(source: VersionClient, named: Source) -> str:
        wanted = {block for first, last in named.runs for block in range(first, last)}
        try:
            download(source, manifest, opened, _Among(done, wanted))
        except PublisherFailed as error:
            return f"source {named.url} failed: {error}"
        return ""

    if problems := [each for each in from_each(fetch, client.sources, client.named) if each]:
        raise PublisherFailed("; ".join(problems))


def from_each(
    call: Callable[..., T], clients: Sequence[VersionClient], *arguments: Sequence[Any]
) -> list[T]:
    """Run ``call`` with each of the clients, several at a time, and with its arguments."""
    if len(clients) < 2:
        return list(map(call, clients, *arguments))
    with ThreadPoolExecutor(min(len(clients), MOST_AT_ONCE), "weights-source") as threads:
        return list(threads.map(call, clients, *arguments))
