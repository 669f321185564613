"""The RaaS that may attach, as the host lists them on the standard input of a shared engine: a token for each engine of
a RaaS, which expires with it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from astraflow_core.errors import UserError, WireError

EVERY_S = 1.0
"""A token attaches at most once in such a time."""

MOST_LINE = 1 << 22
"""Bytes of a line of tokens."""


def line_of(tokens: Mapping[str, str]) -> bytes:
    """All tokens that are valid, and the run of each, for :func:`tokens_of`."""
    return msgspec.json.encode(dict(tokens)) + b"\n"


def tokens_of(line: bytes) -> dict[str, str]:
    """Token → run. Raises :class:`WireError`."""
    try:
        return msgspec.json.decode(line, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise WireError(f"malformed line of tokens: {error}") from error


def user_of(token: str) -> str:
    """The name with which a token is sent before the first message (PLAIN, RFC 24 of ZeroMQ)."""
    return hashlib.sha256(token.encode()).hexdigest()


class LiveTokens:
    """Which tokens are valid now. ``passwords``: :func:`user_of` → token."""

    def __init__(self) -> None:
        self.passwords: dict[str, str] = {}
        self._runs: dict[str, str] = {}
        self._attached: dict[str, float] = {}

    def __contains__(self, token: str) -> bool:
        return token in self._runs

    def replace(self, runs: Mapping[str, str]) -> None:
        """These are valid from now on, and no others."""
        self._runs = dict(runs)
        self.passwords.clear()
        self.passwords.update({user_of(token): token for token in runs})
        self._attached = {token: at for token, at in self._attached.items() if token in runs}

    def admit(self, token: str, now: float) -> str:
        """The run of a token that attaches. Raises :class:`UserError` if it may not, with the reason."""
        if (run := self._runs.get(token)) is None:
            raise UserError("the token is not one of this shared engine, or its RaaS has ended")
        if now - self._attached.get(token, -EVERY_S) < EVERY_S:
            raise UserError(
                f"the engine of a RaaS of {run} attaches again within {EVERY_S:g} s; try later"
            )
        self._attached[token] = now
        return run


class SparseLog:
    """Says ``line`` at most once in ``every_s``, with how often it held since the last time."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s, self._said_at, self._count = every_s, float("-inf"), 0

    def counted(self, now: float) -> int:
        """One more; how many there were since the last line if one is due, else 0."""
        self._count += 1
        if now - self._said_at < self._every_s:
            return 0
        self._said_at, count, self._count = now, self._count, 0
        return count
