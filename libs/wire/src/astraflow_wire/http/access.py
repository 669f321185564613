"""Tokens with restricted rights: one for each role and process, derived from the token of the run.

A service that has the run's token needs no list of tokens: a token states its role, and the
service recomputes its signature (HMAC-SHA256, RFC 2104). A token reads ``af1.ROLE.NAME.GENERATION.ENDS.SIGNATURE``; that
of a RaaS or a trainer continues with ``~`` and the secret that the run's weight transports share, from which the run's
token does not follow.
"""

from __future__ import annotations

import base64
import hmac
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from astraflow_core.shared_secret import FORM, MARK, shared_secret

Role = Literal["raas", "trainer", "operator", "viewer"]
"""``raas`` leases tasks and pushes groups, ``trainer`` takes batches and publishes, ``operator`` changes the run,
``viewer`` looks."""
ROLES: tuple[Role, ...] = get_args(Role)
_BEARER = b"Bearer "
_LONGEST = 1024
_PASS = "pass a valid one with --token-file, or in ASTRAFLOW_TOKEN"
_MISSING = f"there is no token; {_PASS}"
_FOREIGN = f"the token is not of this run; {_PASS}"
_ANOTHER = "whoever has the token of the run can make another with `astraflow token`"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class Grant:
    """Who asks: ``role`` ``"run"`` has the token of the run and may do all. ``name``: of the RaaS, the trained policy, or
    the person. ``ends``: seconds since 1970, 0 for never. Of a process and a generation each, one token is valid."""

    role: Role | Literal["run"]
    name: str = ""
    generation: int = 0
    ends: int = 0

    def __str__(self) -> str:
        return (
            "the token of the run"
            if self.role == "run"
            else f"the token of {self.role} {self.name!r}"
        )


EVERYTHING = Grant("run")


def process_token(token: str, role: Role, name: str, generation: int = 0, ends: int = 0) -> str:
    """The token of one process or person, derived from the run's; empty for a run without one.

    Raises :class:`ValueError` for an invalid name, and for a ``token`` that is not the run's.
    """
    if not token:
        return ""
    if token.startswith(FORM):
        raise ValueError(
            "only the token of the run derives others; this one has fewer rights itself"
        )
    if not is_name(name):
        raise ValueError(
            f"{name!r} is not a name: up to 100 letters, digits, '_', '.' and '-', a letter or digit first"
        )
    text = f"{FORM}{role}.{name}.{generation}.{ends}"
    signed = f"{text}.{_signature(_key(token), text)}"
    return signed + (MARK + shared_secret(token) if role in ("raas", "trainer") else "")


def presented(token: str) -> str:
    """What of a token a request shows: not the secret that comes with it."""
    return token.partition(MARK)[0] if token.startswith(FORM) else token


def only_shared(token: str) -> str:
    """The token of a child process, which has the shared secret and no rights."""
    return MARK + shared_secret(token) if token else ""


def is_name(text: str) -> bool:
    """Whether a token can be made for it."""
    return _NAME.fullmatch(text) is not None


class Access:
    """Checks the tokens of requests to a service that has ``token``: the run's, or that of its own process, which knows
    the run's from the secret that follows from it, and no other role.

    ``oldest``: ``"ROLE/NAME"`` to the first generation whose tokens are still valid. ``clock``: seconds since 1970.
    ``roles``: where to read what each token may do.
    """

    roles = "`astraflow token --help` lists the roles"

    def __init__(
        self,
        token: str,
        oldest: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.token = token
        self.oldest = dict(oldest or {})
        self._clock = clock
        self._own = presented(token) if token.startswith(FORM) else ""
        self._shared = shared_secret(token)
        self._key = _key(token)

    def grant(self, header: str | bytes | None) -> Grant | None:
        """The grant of an ``Authorization`` header; ``None`` if it is not valid. A run without a token admits every request."""
        found = self._judged(header)
        return found if isinstance(found, Grant) else None

    def refusal(self, header: str | bytes | None) -> str:
        """Why a header is not valid, for its sender: only the owner of a token that was valid learns that it has expired."""
        found = self._judged(header)
        assert isinstance(found, str), "asked only where grant() is None"
        return found

    def _judged(self, header: str | bytes | None) -> Grant | str:
        """Its grant, or why it has none."""
        if not self.token:
            return EVERYTHING
        given = header.encode("latin-1", "replace") if isinstance(header, str) else header
        if given is None:
            return _MISSING
        if not given.startswith(_BEARER) or len(given) > _LONGEST:
            return _FOREIGN
        shown = given[len(_BEARER) :]
        if not shown.startswith(FORM.encode()):
            return EVERYTHING if self._is_of_the_run(shown) else _FOREIGN
        shown = shown.partition(MARK.encode())[0]
        if self._own:
            return EVERYTHING if hmac.compare_digest(shown, self._own.encode()) else _FOREIGN
        return self._derived(shown)

    def revoke(self, role: Role, name: str) -> int:
        """End the tokens of a process or person that are valid now; returns the generation of the next ones."""
        who = f"{role}/{name}"
        self.oldest[who] = self.oldest.get(who, 0) + 1
        return self.oldest[who]

    def _is_of_the_run(self, shown: bytes) -> bool:
        if not self._own:
            return hmac.compare_digest(shown, self.token.encode())
        text = shown.decode("latin-1")
        follows = shared_secret(text).encode("latin-1")
        return MARK not in text and hmac.compare_digest(follows, self._shared.encode())

    def _derived(self, shown: bytes) -> Grant | str:
        text, _, signature = shown.rpartition(b".")
        if not hmac.compare_digest(
            signature, _signature(self._key, text.decode("latin-1")).encode()
        ):
            return _FOREIGN
        _, role, rest = text.decode("ascii").split(".", 2)
        name, generation, ends = rest.rsplit(".", 2)
        grant = Grant(_role(role), name, int(generation), int(ends))
        if grant.ends and grant.ends <= self._clock():
            ended = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(grant.ends))
            return f"{grant} ended at {ended} UTC; {_ANOTHER}"
        if grant.generation < self.oldest.get(f"{role}/{name}", 0):
            return f"{grant} was revoked; {_ANOTHER}"
        return grant


def shares(shown: bytes, secret: str) -> bool:
    """Whether a bearer token is ``secret``, which the components of a run share, brings it, or is the run's token, from
    which it follows."""
    follows = shared_secret(shown.decode("latin-1")).encode("latin-1")
    known = secret.encode()
    return hmac.compare_digest(shown, known) or hmac.compare_digest(follows, known)


def _key(token: str) -> bytes:
    return hmac.digest(token.encode(), b"astraflow access", "sha256")


def _signature(key: bytes, text: str) -> str:
    digest = hmac.digest(key, text.encode("latin-1"), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _role(text: str) -> Role:
    return next(role for role in ROLES if role == text)
