"""Logins of browsers: what is signed, for how long, and where it counts."""

from __future__ import annotations

import hmac
from hashlib import sha256

import pytest

from astraflow_wire.http.browser_sessions import LOGIN, LOGIN_S, SESSION_S, BrowserSessions

SECRET = "a-token-of-this-run"


@pytest.fixture
def now() -> list[float]:
    return [1.7e9]


@pytest.fixture
def sessions(now: list[float]) -> BrowserSessions:
    return BrowserSessions(SECRET, lambda: now[0])


def test_a_signature_is_hmac_of_what_it_signs(sessions: BrowserSessions) -> None:
    text, _, signature = sessions.login_key("read").rpartition(".")
    key = hmac.new(SECRET.encode(), b"astraflow browser sessions", sha256).digest()
    assert signature == hmac.new(key, f"login:{text}".encode(), sha256).hexdigest()
    assert text.startswith(f"read.{1.7e9 + LOGIN_S:.0f}.")


def test_a_key_becomes_one_session_of_its_scope(sessions: BrowserSessions) -> None:
    key = sessions.login_key("read")
    value = sessions.redeem(key)
    found = sessions.session(f"other=1; {sessions.cookie}={value}")
    assert found is not None and (found.scope, found.ends) == ("read", 1.7e9 + SESSION_S)
    assert sessions.redeem(key) is None, "twice"
    assert sessions.redeem(str(value)) is None, "a session is no key"
    assert sessions.session(f"{sessions.cookie}={key}") is None, "a key is no session"


def test_both_end(sessions: BrowserSessions, now: list[float]) -> None:
    early, late = sessions.login_key("full"), sessions.login_key("full")
    cookie = f"{sessions.cookie}={sessions.redeem(early)}"
    now[0] += LOGIN_S
    assert sessions.redeem(late) is None
    assert sessions.session(cookie) is not None
    now[0] += SESSION_S
    assert sessions.session(cookie) is None


def test_a_change_of_any_letter_is_refused(sessions: BrowserSessions) -> None:
    key = sessions.login_key("full")
    for place in range(len(key)):
        for letter in "a0.":
            changed = key[:place] + letter + key[place + 1 :]
            assert changed == key or sessions.redeem(changed) is None, place
    assert BrowserSessions("another").redeem(key) is None
    assert sessions.redeem(key) is not None


def test_cookies_count_below_the_pages_only(sessions: BrowserSessions) -> None:
    cookie = f"{sessions.cookie}={sessions.redeem(sessions.login_key('full'))}".encode()
    for path in ("/ui/", "/ui/api/runs", "/ui/%2e%2e/v1/stop"):
        assert sessions.admits("GET", path, b"", cookie) and not sessions.admits(
            "GET", path, b"", None
        )
    for path in ("/v1/stop", "/ui", "/uix/", "/", "/metrics", "//ui/", ""):
        assert not sessions.admits("POST", path, b"", cookie), path
    query = f"key={sessions.login_key('full')}".encode()
    assert sessions.admits("GET", LOGIN, query, None)
    for method, path, given in (
        ("POST", LOGIN, query),
        ("GET", "/ui/", query),
        ("GET", "/v1/status", query),
        ("GET", LOGIN, b"key=x"),
        ("GET", LOGIN, query + b"&" + query),
        ("GET", LOGIN, b""),
    ):
        assert not sessions.admits(method, path, given, None), (method, path)
    for odd in (b"\xff=\xfe", b"=", b";;;", b"a" * 9000, f"{sessions.cookie}=a.b.c.d".encode()):
        assert sessions.session(odd) is None
