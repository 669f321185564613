"""Messages by which a trainer that has lost its state gets the weights of a version from those that hold it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from astraflow_wire.limits import MAX_ENDPOINTS, Count, Endpoints, Name, Seconds, Version
from astraflow_wire.messages import AnnouncementMessage, Message, TextMessage

_Candidates = Annotated[list[AnnouncementMessage], Meta(max_length=MAX_ENDPOINTS)]
_Problems = Annotated[list[str], Meta(max_length=MAX_ENDPOINTS)]


class RecoverVersion(Message, frozen=True):
    """``POST /v1/versions/recover``: a trainer whose registration was refused, since it has no state to resume from,
    asks who holds a version of its policy. Every RaaS is asked to offer what it has (``offer`` among its notices);
    the reply comes when all have answered, or after ``wait_s``.
    400: the run has no such policy; the reason lists those that it has."""

    policy: Name
    wait_s: Seconds


class RecoverableVersions(Message, frozen=True):
    """Reply: the versions that RaaS offer, newest first, with their addresses; the newest version as it was
    ``announced``, which a store may still have; ``problems``: which RaaS offer nothing, and why, as text."""

    offered: _Candidates
    problems: _Problems
    announced: AnnouncementMessage | None = None


class OfferVersion(TextMessage, frozen=True):
    """``POST /v1/versions/offer``: a RaaS answers to ``offer`` among its notices. It serves ``version`` to receivers of
    the transport at ``endpoints`` until the notice is gone; fields as in
    :class:`astraflow_core.types.Announcement`. Or it cannot, because of ``error``.
    404: this RaaS or this incarnation of it is not known: it must register (again).
    409: another process has registered as this RaaS since; the reason says when."""

    raas: Name
    policy: Name
    endpoints: Endpoints
    version: Version = -1
    transport: Name = ""
    digest: Name = ""
    size: Count = 0
    error: str = ""
    incarnation: Count = 0
