"""What each run has used, in all and in the window of its tenant's quota; kept in a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from astraflow_contrib_pool.config import PricesTable, TenantTable
from astraflow_core.errors import UserError
from astraflow_wire.decoding import UNDECODABLE
from astraflow_wire.host.disk import replace_file

FILE = "ledger.json"


class Account(msgspec.Struct, kw_only=True):
    """One run, ``TENANT/NAME``. ``slot_s``: seconds of RaaS, in whatever state; ``place_s``: seconds of episodes.
    ``joined`` and ``seen``: seconds since 1970."""

    tokens: float = 0.0
    slot_s: float = 0.0
    place_s: float = 0.0
    joined: float = 0.0
    seen: float = 0.0

    def cost(self, prices: PricesTable) -> float:
        """In the currency of the prices."""
        return self.slot_s / 3600 * prices.slot_hour + self.tokens / 1e6 * prices.million_tokens


@dataclass
class TokenWindow:
    """The tokens of a tenant since ``began``, on the pool's clock."""

    began: float = 0.0
    tokens: float = 0.0

    def add(self, tokens: float, table: TenantTable, now: float) -> None:
        """Count tokens."""
        self._turn(table, now)
        self.tokens += tokens

    def wait_s(self, table: TenantTable, now: float) -> float:
        """Seconds until the tenant may continue, 0 if it may now."""
        self._turn(table, now)
        if table.max_tokens is None or self.tokens < table.max_tokens:
            return 0.0
        return self.began + table.window_s - now

    def _turn(self, table: TenantTable, now: float) -> None:
        if now - self.began >= table.window_s:
            self.began, self.tokens = now, 0.0


class KeptWindow(msgspec.Struct, kw_only=True):
    """A :class:`TokenWindow` in the file. ``began``: seconds since 1970."""

    began: float
    tokens: float

    def resumed(self, table: TenantTable, now: float, wall: float) -> TokenWindow:
        """On the pool's clock, which is ``now``. One that seems to begin in the future, since the host's clock was set, begins now."""
        return TokenWindow(now - min(table.window_s, max(0.0, wall - self.began)), self.tokens)


class Ledger(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The file. ``windows``: by tenant."""

    accounts: dict[str, Account] = msgspec.field(default_factory=dict)
    windows: dict[str, KeptWindow] = msgspec.field(default_factory=dict)


def read_ledger(directory: Path) -> Ledger:
    """What a pool has left; nothing if it is new. :class:`UserError` for a file that is damaged: it says what was
    used, and is not begun anew silently."""
    path = directory / FILE
    if not path.exists():
        return Ledger()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ledger)
    except UNDECODABLE as error:
        raise UserError(
            f"{path} is damaged ({error}); correct it, or move it away to begin with empty accounts"
        ) from error


def write_ledger(directory: Path, ledger: Ledger) -> None:
    """Replace the file in one step."""
    replace_file(directory / FILE, msgspec.json.format(msgspec.json.encode(ledger)))


def ledger_rows(
    accounts: Mapping[str, Account], prices: PricesTable, runs: Iterable[str]
) -> list[dict[str, object]]:
    """The accounts of ``runs``, JSON-like."""
    return [
        {
            "run": run,
            "tokens": accounts[run].tokens,
            "slot_s": round(accounts[run].slot_s, 3),
            "place_s": round(accounts[run].place_s, 3),
            "cost": round(accounts[run].cost(prices), 6),
            "joined": accounts[run].joined,
            "seen": accounts[run].seen,
        }
        for run in runs
    ]
