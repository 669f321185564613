"""Which receiver fetches a version from which: a tree that grows in the order of the requests."""

from __future__ import annotations

import threading
from collections import Counter

DIRECT = 4
"""Readers that a publisher serves itself while there are relays for the others."""
RELAYED = 2
"""Readers that a relay gets before a later one gets its first: the tree grows wide, not deep."""


class FanOut:
    """Gives each reader of one version the relay to fetch from.

    A reader's relay was given its own place earlier, so there are no cycles, and it serves blocks as soon
    as it has verified them, so a level of the tree costs about one block's time.
    """

    def __init__(self) -> None:
        self._from: dict[str, str] = {}
        self._relays: dict[str, str] = {}
        self._lock = threading.Lock()

    def place(self, reader: str, address: str) -> str:
        """The address of the relay for ``reader``, or "" for the publisher itself. ``address`` is where the
        reader serves others, "" if it does not."""
        with self._lock:
            children = Counter(self._from.values())
            relay = ""
            if children[""] >= DIRECT:
                others = [known for known in self._relays.values() if known != address]
                relay = min(others, key=lambda known: max(children[known], RELAYED - 1), default="")
            self._from[reader] = relay
            if address:
                # A reader that comes again goes to the end, behind those that may wait for it.
                self._relays = {r: known for r, known in self._relays.items() if known != address}
                self._relays[reader] = address
            return relay

    def leave(self, reader: str) -> None:
        """The reader has what it wanted; it continues as a relay."""
        with self._lock:
            self._from.pop(reader, None)
