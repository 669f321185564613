"""Addresses of the authors of a distribution, as a page may link to them."""

from __future__ import annotations

from collections.abc import Iterable
from email.message import Message
from importlib.metadata import PackageMetadata
from re import fullmatch
from urllib.parse import urlsplit

SAFE_LABEL = r"^[A-Za-z0-9][A-Za-z0-9 ._/&-]{0,39}\Z"
SAFE_URL = r"^https?://[A-Za-z0-9!#$%&()*+,./:;=?@_~\[\]-]{1,500}\Z"
"""ASCII without spaces, quotes and angle brackets; other characters have to be percent-encoded."""
MOST_LINKS = 20


def is_safe(url: str) -> bool:
    """Whether ``url`` is one of http or https with a host, and without a user that looks like one."""
    if not fullmatch(SAFE_URL, url):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False


def links_of(metadata: Message | PackageMetadata) -> list[dict[str, str]]:
    """``label`` and ``url`` of each ``Project-URL`` and of ``Home-page``; those that are not safe are left out."""
    named = [str(text).partition(",") for text in metadata.get_all("Project-URL") or ()]
    pairs = [(label.strip(), url.strip()) for label, _, url in named]
    pairs += [("Homepage", str(url).strip()) for url in metadata.get_all("Home-page") or ()]
    return [{"label": label, "url": url} for label, url in _once(pairs)][:MOST_LINKS]


def _once(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    seen: set[str] = set()
    for label, url in pairs:
        if url not in seen and is_safe(url) and fullmatch(SAFE_LABEL, label):
            seen.add(url)
            yield label, url
