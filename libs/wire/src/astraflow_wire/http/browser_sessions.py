"""Logins of browsers, which cannot send a bearer token: links that work once, and signed cookies with an end.

Both are derived from one secret (a run's token), so that a process with the secret can create a
link without calling the service, and a restarted service still accepts its cookies. Signatures:
HMAC-SHA256 (RFC 2104), compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Literal, get_args
from urllib.parse import parse_qs

PREFIX = "/ui/"
"""A service accepts cookies below this path only, not for its API, which a page of another port
could call.
"""
LOGIN = f"{PREFIX}login"
LOGIN_S = 300.0
"""Seconds for which a link is valid."""
SESSION_S = 12 * 3600.0
"""Seconds for which a login is valid."""
Scope = Literal["full", "read"]
"""The rights of a login: read and act, or read only."""
_LONGEST = 256


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A login: its rights, its expiry (seconds since 1970), and a public name."""

    scope: Scope
    ends: float
    name: str


class BrowserSessions:
    """The logins that ``secret`` signs; ``clock`` gives seconds since 1970."""

    def __init__(self, secret: str, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(secret.encode(), b"astraflow browser sessions", "sha256")
        self._clock = clock
        self._used: dict[str, float] = {}
        # Browsers send a cookie to every port of a host, so each service needs its own cookie name.
        self.cookie = f"astraflow_{hashlib.sha256(self._key).hexdigest()[:12]}"

    def login_key(self, scope: Scope, lasts_s: float = LOGIN_S) -> str:
        """What a link carries as ``?key=``."""
        return self._signed("login", scope, lasts_s)

    def redeem(self, key: str) -> str | None:
        """The value of the cookie for a key that was not used before, else ``None``."""
        login = self._read("login", key)
        now = self._clock()
        self._used = {name: end for name, end in self._used.items() if end > now}
        if login is None or login.name in self._used:
            return None
        self._used[login.name] = login.ends
        return self._signed("session", login.scope, SESSION_S)

    def session(self, cookies: str | bytes | None) -> BrowserSession | None:
        """The login that a ``Cookie`` header shows, if it is valid."""
        if cookies is None:
            return None
        text = cookies.decode("latin-1") if isinstance(cookies, bytes) else cookies
        try:
            morsel = SimpleCookie(text).get(self.cookie)
        except CookieError:
            return None
        return None if morsel is None else self._read("session", morsel.value)

    def admits(self, method: str, path: str, query: bytes, cookies: bytes | None) -> bool:
        """Whether a request may pass without the token: one of a login below :data:`PREFIX`, or a first one that
        shows a key which :meth:`redeem` will look at."""
        if not path.startswith(PREFIX):
            return False
        if path == LOGIN and method == "GET":
            keys = parse_qs(query.decode("latin-1")).get("key", [])
            return len(keys) == 1 and self._read("login", keys[0]) is not None
        return self.session(cookies) is not None

    def _signed(self, purpose: str, scope: Scope, lasts_s: float) -> str:
        text = f"{scope}.{self._clock() + lasts_s:.0f}.{secrets.token_urlsafe(12)}"
        return f"{text}.{self._signature(purpose, text)}"

    def _signature(self, purpose: str, text: str) -> str:
        return hmac.digest(self._key, f"{purpose}:{text}".encode(), "sha256").hex()

    def _read(self, purpose: str, value: str) -> BrowserSession | None:
        text, _, signature = value.rpartition(".")
        if len(value) > _LONGEST or not value.isascii():
            return None
        if not hmac.compare_digest(signature, self._signature(purpose, text)):
            return None
        scope, end, name = text.split(".")
        if scope not in get_args(Scope) or float(end) <= self._clock():
            return None
        return BrowserSession("full" if scope == "full" else "read", float(end), name)
