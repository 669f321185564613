"""What one tenant cannot have more of, however long a pool serves."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from astraflow_contrib_pool.broker.ledger import Account

JOINS_PER_MINUTE = 30
"""Of the runs of one tenant."""

MOST_ACCOUNTS = 500
"""Of one tenant; the oldest ones of runs that left are added up beyond that."""

EARLIER = "earlier runs"
"""Stands for their names; no run can have this one."""

_MINUTE_S = 60.0


@dataclass
class MinuteLimit:
    """At most ``most`` events within a minute."""

    most: int = JOINS_PER_MINUTE
    at: deque[float] = field(default_factory=deque)

    def wait_s(self, now: float) -> float:
        """Seconds until one more may happen, 0 if it may now."""
        while self.at and now - self.at[0] >= _MINUTE_S:
            self.at.popleft()
        return self.at[0] + _MINUTE_S - now if len(self.at) >= self.most else 0.0

    def note(self, now: float) -> None:
        """Count an event."""
        self.at.append(now)


def merge_earlier(
    accounts: dict[str, Account], tenant: str, in_use: Collection[str], most: int = MOST_ACCOUNTS
) -> None:
    """Add the oldest accounts of a tenant up into one, until it has no more than ``most``; those ``in_use`` stay."""
    start = f"{tenant}/"
    own = [key for key in accounts if key.startswith(start)]
    if len(own) <= most:
        return
    total = start + EARLIER
    ended = [key for key in own if key not in in_use and key != total]
    ended.sort(key=lambda key: accounts[key].seen)
    for key in ended[: len(own) - most + (total not in accounts)]:
        gone = accounts.pop(key)
        into = accounts.setdefault(total, Account(joined=gone.joined))
        into.tokens += gone.tokens
        into.slot_s += gone.slot_s
        into.place_s += gone.place_s
        into.joined = min(into.joined, gone.joined)
        into.seen = max(into.seen, gone.seen)
