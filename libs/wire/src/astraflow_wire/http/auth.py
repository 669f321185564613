"""The run's bearer token: made per run, passed by environment or file, compared in constant time."""

from __future__ import annotations

import hmac
import ipaddress
import secrets

from astraflow_wire.http.access import presented


def new_token() -> str:
    """A fresh token of 256 bits."""
    return secrets.token_urlsafe(32)


def is_token(text: str) -> bool:
    """Whether the token is valid in a header."""
    return text != "" and text.isascii() and text.isprintable() and " " not in text


def bearer(token: str) -> dict[str, str]:
    """The header that a request carries; empty for a run without a token (loopback only)."""
    return {"authorization": f"Bearer {presented(token)}"} if token else {}


def authorized(header: str | bytes | None, token: str) -> bool:
    """Whether an ``Authorization`` header has the token; always true without a token."""
    if not token:
        return True
    if header is None:
        return False
    given = header.encode() if isinstance(header, str) else header
    return hmac.compare_digest(given, b"Bearer " + token.encode())


def is_loopback(host: str) -> bool:
    """Whether only processes of this host reach ``host``, so that a listener there may go without a token."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
