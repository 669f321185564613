"""Addresses of the authors of a distribution, as a page may link to them."""

from __future__ import annotations

from email.message import Message
from importlib.metadata import PackageMetadata
from re import fullmatch
from urllib.parse import urlsplit

_UNSEEN = r"\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
"""Characters that cannot be seen, or change the direction of what follows."""
SAFE_LABEL = rf"^[^\s<>{_UNSEEN}](?:[^<>{_UNSEEN}]{{0,38}}[^\s<>{_UNSEEN}])?\Z"
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
    """``label`` and ``url`` of each ``Project-URL`` and of ``Home-page``; :func:`left_out` lists the others."""
    safe = [pair for pair in _pairs(metadata) if not _why_not(*pair)]
    return [{"label": label, "url": url} for label, url in safe[:MOST_LINKS]]


def left_out(metadata: Message | PackageMetadata) -> list[str]:
    """The links that are not shown, each with the reason."""
    reasons = [(label, _why_not(label, url)) for label, url in _pairs(metadata)]
    many = [(label, f"there are more than {MOST_LINKS} links") for label, why in reasons if not why]
    return [
        f"the link {label!r}: {why}"
        for label, why in [*((label, why) for label, why in reasons if why), *many[MOST_LINKS:]]
    ]


def _pairs(metadata: Message | PackageMetadata) -> list[tuple[str, str]]:
    """Label and address of each link; an address twice counts once."""
    named = [str(text).partition(",") for text in metadata.get_all("Project-URL") or ()]
    pairs = [(label.strip(), url.strip()) for label, _, url in named]
    pairs += [("Homepage", str(url).strip()) for url in metadata.get_all("Home-page") or ()]
    by_url: dict[str, str] = {}
    for label, url in pairs:
        if url not in by_url or _why_not(by_url[url], url):
            by_url[url] = label
    return [(label, url) for url, label in by_url.items()]


def _why_not(label: str, url: str) -> str:
    if not is_safe(url):
        return (
            f"its address {url!r:.80} is not one of http:// or https:// with a host, without a user and in ASCII "
            "(percent-encode other characters)"
        )
    if not fullmatch(SAFE_LABEL, label):
        return "its label is not 1 to 40 visible characters without < and >"
    return ""
