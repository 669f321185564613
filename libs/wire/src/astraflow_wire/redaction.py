"""Configuration and texts without their secrets, as trackers, pages, reports and agents may have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

HIDDEN = "***"
"""Stands for a secret."""
SHORTEST = 4
"""Letters of a known secret that is looked for in other texts: a shorter one is part of many words."""

_ANYWHERE = {"password", "passwd", "passphrase", "secret", "credential", "credentials", "apikey"}
_LAST = {
    "token", "tokens", "secrets", "passwords", "passphrases", "passcode", "pwd", "auth", "authorization", "bearer",
    "cookie", "cookies", "signature", "headers", "apikeys", "pass", "cred", "creds", "jwt",
}  # fmt: skip
_KEYS_OF = {
    "api", "access", "private", "secret", "auth", "search", "signing", "encryption", "account", "service", "license",
    "shared", "session", "subscription", "ssh", "master",
}  # fmt: skip
_ENDS = ("token", "password", "apikey", "accesskey", "privatekey", "secretkey")
_SPECIAL_TOKENS = {"eos", "bos", "pad", "unk", "mask", "stop", "end", "special"}
_VARIABLES = {"environment", "environ", "env"}
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LONGEST_KEY = 200
_URL = re.compile(r"://\S+")
_PORT = re.compile(r"\d{1,5}(?=[/?#]|$)")
_SCHEME = re.compile(r"(?i)\b(bearer|basic) +[\w.~+/=-]{8,}")
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|x-api-key|(?:set-)?cookie)(['\"]?: *['\"]?)[^'\"\n]+"
)
_GIVEN = re.compile(
    r"(?<![\w.-])([\w.-]{1,100})(\s{0,3}=\s{0,3})"
    r"(\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|\[[^\]\n]*\]|\{[^}\n]*\}|[^&\s'\"]+(?:['\"]\w+)*|['\"]\S+)"
)
_NUMBER = re.compile(r"\d{1,9}")


@lru_cache(maxsize=4096)
def is_secret(key: str) -> bool:
    """Whether the texts below a key of a table are secret: ``api_key``, ``hfToken``, ``headers``; not ``stop_token``."""
    words = [word.lower() for word in _WORDS.findall(key[-_LONGEST_KEY:])]
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in ("token", "tokens") and before in _SPECIAL_TOKENS:
        return False
    if last in _LAST or last.endswith(_ENDS) or _ANYWHERE.intersection(words):
        return True
    if any(a in _KEYS_OF and b in ("key", "keys") for a, b in pairwise(words)):
        return True
    return before != "" and last == "key" and key.isupper()  # a variable, such as SEARCH_KEY


def without_secrets(value: Any, key: str = "") -> Any:
    """The same nested value: ``***`` for texts below keys that name a secret, and what :func:`redacted` hides in others.
    A text such as ``$NAME`` only names a variable and is kept."""
    return _without(value, _hides(key, value))


def hidden_texts(value: Any) -> frozenset[str]:
    """The texts that :func:`without_secrets` replaces as a whole, for :func:`redacted` of messages about them."""
    return frozenset(_hidden(value, secret=False))


def redacted(text: str, known: Iterable[str] = ()) -> str:
    """A text without user names and passwords of URLs, ``Bearer …``, and values of ``NAME=…`` whose name is secret; nor with
    the secrets in ``known``."""
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= SHORTEST:
            text = text.replace(secret, HIDDEN)
    text = _URL.sub(lambda found: _without_user(found[0]), text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _SCHEME.sub(rf"\1 {HIDDEN}", text)
    return _GIVEN.sub(_without_value, text)


def _without(value: Any, secret: bool) -> Any:
    if isinstance(value, Mapping):
        return {
            redacted(str(name)): _without(item, secret or _hides(str(name), item))
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        after = [False, *(_is_option(item) for item in value[:-1])]
        return [_without(item, secret or one) for item, one in zip(value, after, strict=False)]
    if not isinstance(value, str):
        return value
    return HIDDEN if secret and _is_value(value) else redacted(value)


def _hidden(value: Any, secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _hidden(item, secret or _hides(str(name), item))
    elif isinstance(value, list | tuple):
        after = [False, *(_is_option(item) for item in value[:-1])]
        for item, one in zip(value, after, strict=False):
            yield from _hidden(item, secret or one)
    elif isinstance(value, str) and secret and _is_value(value):
        yield value


def _hides(key: str, value: Any) -> bool:
    """Whether all texts of ``value`` are secret below ``key``. ``environment`` holds variables, unless it names a component."""
    if key.lower() in _VARIABLES:
        return isinstance(value, list | tuple) or (
            isinstance(value, Mapping) and "use" not in value
        )
    return any(map(is_secret, key.split(".")))


def _is_value(text: str) -> bool:
    return text != "" and _VARIABLE.fullmatch(text) is None


def _is_option(item: Any) -> bool:
    """Whether the next item of a command line is a secret: ``--api-key``."""
    return isinstance(item, str) and item.startswith("-") and "=" not in item and is_secret(item)


def _without_user(url: str) -> str:
    """``://…`` with ``***`` before the ``@``. A password may hold any letter, so that the last ``@`` counts after a colon that
    begins no port."""
    done, rest = "://", url[3:]
    while "@" in rest:
        authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
        user, colon, after = rest.partition(":")
        if colon and not re.search(r"[/?#\[]", user) and _PORT.match(after) is None:
            return f"{done}{HIDDEN}{rest[rest.rfind('@') :]}"
        if "@" in authority:
            at = authority.rfind("@")
            return f"{done}{HIDDEN}@{_without_user('://' + rest[at + 1 :])[3:]}"
        before, mark, rest = rest.partition("://")
        done += before + mark
    return done + rest


def _without_value(found: re.Match[str]) -> str:
    name, equals, value = found.groups()
    bare = value.strip("'\"")
    in_url = found.start() > 0 and found.string[found.start() - 1] in "?&"
    secret = _hides(name, value) or (in_url and name.lower() in ("key", "sig"))
    if not secret or not _is_value(bare) or (name.endswith("tokens") and _NUMBER.fullmatch(bare)):
        return found[0]
    quote = value[0] if value[0] in "'\"" else ""
    return f"{name}{equals}{quote}{HIDDEN}{quote}"
