"""Fetches a version from several publishers at once, each of which serves a part of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from astraflow_core.types import Manifest, Source
from astraflow_core.weights.client import VersionClient
from astraflow_core.weights.download import Blocks, download
from astraflow_core.weights.failures import PublisherFailed

MOST_AT_ONCE = 16
"""Sources that one receiver fetches from at the same time."""


class _Among:
    """Of the blocks, only some are wanted: the others count as done."""

    def __init__(self, done: Blocks, wanted: set[int]) -> None:
        self._done, self._wanted = done, wanted

    def __contains__(self, block: object) -> bool:
        return block not in self._wanted or block in self._done

    def add(self, block: int) -> None:
        self._done.add(block)


def download_from(client: VersionClient, manifest: Manifest, file: int, done: Blocks) -> None:
    """:func:`astraflow_core.weights.download.download` from the sources of ``client`` at once, of each what it
    serves. One that fails does not keep the others from delivering; then :class:`PublisherFailed` says who
    did not deliver what."""

    def fetch(named: Source, source: VersionClient) -> str:
        wanted = {block for first, last in named.runs for block in range(first, last)}
        try:
            download(source, manifest, file, _Among(done, wanted))
        except PublisherFailed as error:
            missing = sorted(block for block in wanted if block not in done)
            return (
                f"source {named.url} failed with {len(missing)} of its {len(wanted)} blocks missing"
                f"{f', the first is block {missing[0]}' if missing else ''}: {error}"
            )
        return ""

    if not client.sources:
        return
    with ThreadPoolExecutor(min(len(client.sources), MOST_AT_ONCE), "weights-source") as threads:
        problems = [each for each in threads.map(fetch, client.named, client.sources) if each]
    if problems:
        raise PublisherFailed("; ".join(problems))
