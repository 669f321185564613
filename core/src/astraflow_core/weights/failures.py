"""How fetching from a publisher fails."""

from __future__ import annotations


class BadAnswer(ConnectionError):
    """What came is no HTTP answer, ended early, or may pass: the request is worth another attempt."""


class PublisherFailed(Exception):
    """This publisher cannot deliver; another one may."""


class MissingObject(PublisherFailed):
    """The publisher has no such version, or the version no such object."""
