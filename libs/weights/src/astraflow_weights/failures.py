"""How fetching from a publisher fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BAD_ATTEMPTS = 4
"""How often one block, or the manifest, may arrive wrong from one publisher."""


class BadAnswer(ConnectionError):
    """The response was not HTTP, ended early, or reported a temporary failure: the request is worth another attempt."""


class PublisherFailed(Exception):
    """This publisher cannot deliver; another one may."""


class MissingObject(PublisherFailed):
    """The publisher has no such version, or the version no such object."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Consecutive failures of one stream, and how much valid data all streams had received at the last."""

    count: int = 0
    progress: int = -1


def without(error: PublisherFailed, missing: Sequence[int]) -> PublisherFailed:
    """The error of a publisher that did not deliver the blocks ``missing``, in order, which says so."""
    if not missing:
        return error
    return PublisherFailed(
        f"{error}; blocks missing: {len(missing)}, the first is block {missing[0]}"
    )
