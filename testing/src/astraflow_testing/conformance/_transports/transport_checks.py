"""Checks of the transport suite, with messages that name the fault of the transport."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from safetensors import SafetensorError

from astraflow_core.errors import WeightsError
from astraflow_core.protocols.transport import Publisher, Receiver
from astraflow_core.types import Announcement, ExportedTensor, WeightSource
from astraflow_testing.conformance._transports import tensors
from astraflow_testing.conformance._transports.link import ShapedLink
from astraflow_testing.conformance._transports.transport_rig import announcement
from astraflow_testing.conformance.subject import violated

PROTOCOL = "astraflow_core/protocols/transport"
DEADLINE_S = 20.0
PATIENCE_S = 40.0
"""Deadline of a fetch that is held up on purpose."""
GRACE_S = 3.0
"""How much later than its deadline a fetch may say that it failed."""


def demand(kept: bool, did: str, demands: str) -> None:
    """Fail unless ``kept``, with what the transport ``did`` and what the protocol ``demands``."""
    if not kept:
        violated(PROTOCOL, f"the transport {did}", demands)


def publish(
    publisher: Publisher,
    version: int,
    exported: Any,
    derives_from: int | None = None,
    base: str | None = None,
) -> Announcement:
    """Publish, and announce it as a trainer would."""
    given = {} if base is None else {"base": base}
    manifest = publisher.publish(version, exported, derives_from, **given)
    return announcement(manifest, publisher.endpoints)


def fetch(receiver: Receiver, told: Announcement) -> WeightSource:
    """A fetch that has no reason to fail."""
    try:
        return receiver.fetch(told, DEADLINE_S)
    except WeightsError as error:
        violated(
            PROTOCOL,
            f"the transport could not fetch version {told.version}: {error}",
            "every version that is the newest, retained or leased can be fetched",
        )


def outcome(fetching: Future[WeightSource]) -> WeightSource:
    """The result of a fetch that was in progress when newer versions were published."""
    try:
        return fetching.result(DEADLINE_S + GRACE_S)
    except WeightsError as error:
        violated(
            PROTOCOL,
            f"the transport broke off a fetch: {error}",
            "a version stays, whatever is published or dropped, while a reader has a lease on it",
        )


def compare(source: WeightSource, told: Announcement, published: list[ExportedTensor]) -> None:
    """The source is the announced version, bit by bit."""
    named = (source.policy, source.version, source.digest)
    demand(
        named == (told.policy, told.version, told.digest),
        f"handed out {named}",
        f"the announced {(told.policy, told.version, told.digest)}",
    )
    demand(
        source.path.is_file(),
        f"has no file at {source.path}",
        "a file that stays until its source is released",
    )
    try:
        held = tensors.read(source.path)
    except SafetensorError as error:
        violated(PROTOCOL, f"the transport wrote no safetensors file: {error}", "one that opens")
    found = tensors.difference(held, tensors.contents(published))
    demand(not found, f"handed out a version in which {found}", "tensors bit by bit as published")


def arrives(
    receiver: Receiver, told: Announcement, published: list[ExportedTensor]
) -> WeightSource:
    """Fetch and compare."""
    source = fetch(receiver, told)
    compare(source, told, published)
    return source


@contextmanager
def refused(
    error: type[Exception], otherwise: str, naming: str = "", within_s: float = DEADLINE_S
) -> Iterator[None]:
    """The block must raise ``error`` in time, with ``naming`` in its message."""
    began = time.monotonic()
    try:
        yield
    except error as raised:
        took = time.monotonic() - began
        demand(
            took < within_s + GRACE_S,
            f"took {took:.1f} s to say {str(raised)!r}",
            f"an answer within {within_s} s",
        )
        words = rf"\b{naming}\b" if naming else r"\w+ \w+"
        demand(
            re.search(words, str(raised)) is not None,
            f"raised {raised!r}",
            f"words for a person{f' that name {naming}' if naming else ''}",
        )
        return
    except Exception as raised:  # noqa: BLE001 (told to the reader, with the one expected)
        violated(PROTOCOL, f"the transport raised {raised!r}", f"{error.__name__} if it cannot")
    violated(PROTOCOL, otherwise, error.__name__)


@contextmanager
def refused_or_right(
    told: Announcement, published: list[ExportedTensor]
) -> Iterator[list[WeightSource]]:
    """The block appends the fetched versions, which must be right, or raises ``WeightsError``."""
    got: list[WeightSource] = []
    try:
        yield got
    except WeightsError:
        return
    for source in got:
        compare(source, told, published)


def stands_still(held: threading.Event) -> None:
    """Wait until a fetch has come as far as its link lets it."""
    demand(held.wait(DEADLINE_S), "fetched nothing through the link", "use of the endpoints")


def holding(link: ShapedLink, flags: frozenset[str]) -> ShapedLink:
    """The link, if it can make a fetch stand still; every network transport's can."""
    if not link.holds:
        if "cross_host" in flags:
            pytest.fail("a transport that declares 'cross_host' needs a `link` that holds")
        pytest.skip("this link cannot suspend a fetch")
    return link
