"""The secret that the components of a run share, for connections of their own: those of weight transports."""

from __future__ import annotations

import base64
import hmac

FORM, MARK = "af1.", "~"
"""How the token of a process begins, and what is ahead of the shared secret in it, which it could not derive."""


def shared_secret(token: str) -> str:
    """What follows from a run's token (HMAC-SHA256), or comes with the token of a process; empty without a token."""
    if not token:
        return ""
    if token.startswith((FORM, MARK)) and MARK in token:
        return token.partition(MARK)[2]
    digest = hmac.digest(token.encode(), b"astraflow shared secret", "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
