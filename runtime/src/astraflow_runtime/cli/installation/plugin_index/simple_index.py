"""Wheels of a simple index (PEP 503 and PEP 691), as pip reads it, for the reports that they have."""

from __future__ import annotations

import hashlib
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import msgspec
from packaging.utils import canonicalize_name

from astraflow_core.errors import UserError
from astraflow_runtime.cli.installation.plugin_index.reading import LARGEST, fetch, is_web

MOST_DISTRIBUTIONS = 500
MOST_WHEELS = 2_000
LARGEST_WHEEL = 1 << 26
"""Bytes of a wheel that is downloaded for its report."""
DEADLINE_S = 600.0
_REQUEST_S = 60.0
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.2, */*;q=0.01"
_JSON = "application/vnd.pypi.simple.v1+json"
_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl")


@dataclass(frozen=True, slots=True)
class _Linked:
    """A file or a distribution that a page names, and the SHA-256 of the file if the page has it."""

    name: str
    url: str
    sha256: str = ""


def download(url: str, names: Sequence[str], folder: Path) -> list[str]:
    """Put the wheels of the distributions ``names`` (none: of all) of the index at ``url``, or those that the page there lists
    itself, into ``folder``; returns what could not be had, each with the reason. Raises :class:`UserError` if the index cannot be read, or has too much."""
    base, until = f"{url.rstrip('/')}/", time.monotonic() + DEADLINE_S
    chosen = [_Linked(name, urljoin(base, f"{canonicalize_name(name)}/")) for name in names]
    distributions = chosen or list(_linked(base, "projects", url))
    wheels = [each for each in distributions if _WHEEL.fullmatch(each.name)]
    distributions = [each for each in distributions if not _WHEEL.fullmatch(each.name)]
    if len(distributions) > MOST_DISTRIBUTIONS:
        raise UserError(
            f"{url} lists {len(distributions)} distributions, more than {MOST_DISTRIBUTIONS}; name those that you want: "
            "--distribution NAME"
        )
    problems = []
    listed = (_linked(each.url, "files", url) for each in distributions)
    for count, wheel in enumerate(itertools.chain(wheels, itertools.chain.from_iterable(listed))):
        if count >= MOST_WHEELS or time.monotonic() > until:
            raise UserError(
                f"{url}: more than {MOST_WHEELS} wheels, or they took longer than {DEADLINE_S:g} s; name fewer "
                "distributions: --distribution NAME"
            )
        if problem := _saved(wheel, folder):
            problems.append(f"{wheel.name}: {problem}")
    return problems


def _saved(wheel: _Linked, folder: Path) -> str:
    """Download a wheel; why it could not be used, or nothing."""
    if not is_web(wheel.url):
        return f"its address {wheel.url!r:.80} is not one of http or https"
    try:
        content = fetch(wheel.url, wheel.name, _REQUEST_S, LARGEST_WHEEL).content
    except UserError as error:
        return str(error).removeprefix(f"{wheel.name}: ")
    if len(content) > LARGEST_WHEEL:
        return f"it has more than {LARGEST_WHEEL >> 20} MiB"
    if wheel.sha256 and hashlib.sha256(content).hexdigest() != wheel.sha256:
        return "its SHA-256 is not the one that the index has"
    (folder / wheel.name).write_bytes(content)
    return ""


def _linked(address: str, what: str, who: str) -> Iterator[_Linked]:
    """What a page of the index lists: its ``projects`` or the wheels among its ``files``; of a page that is no index but lists
    wheels, these."""
    page = fetch(address, who, _REQUEST_S, LARGEST, _ACCEPT)
    if len(page.content) > LARGEST:
        raise UserError(f"{who}: {address} has more than {LARGEST >> 20} MiB: --distribution NAME")
    if page.kind == _JSON:
        yield from _of_json(page.content, page.address, what, who)
        return
    anchors = _Anchors()
    anchors.feed(page.content.decode("utf-8", "replace"))
    for href in anchors.found:
        url, fragment = urldefrag(urljoin(page.address, href))
        path = urlsplit(url).path
        name = unquote(path.rstrip("/").rpartition("/")[2])
        digest = fragment.partition("sha256=")[2][:64]
        # A server that lists a folder also links to its parent and to itself in another order.
        below = url.startswith(page.address) and url != page.address
        is_wheel = bool(_WHEEL.fullmatch(name))
        if is_wheel or (what == "projects" and name and below and path.endswith("/")):
            yield _Linked(name, url, digest)


def _of_json(content: bytes, address: str, what: str, who: str) -> Iterator[_Linked]:
    try:
        listed: list[dict[str, Any]] = msgspec.convert(
            msgspec.json.decode(content)[what], list[dict[str, Any]]
        )
        for each in listed:
            if what == "projects":
                name = str(each["name"])
                yield _Linked(name, urljoin(address, f"{canonicalize_name(name)}/"))
            else:
                digest = str((each.get("hashes") or {}).get("sha256", ""))
                file = _Linked(str(each["filename"]), urljoin(address, str(each["url"])), digest)
                if _WHEEL.fullmatch(file.name):
                    yield file
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{who}: {address} is not a page of a simple index: {error!r}") from error


class _Anchors(HTMLParser):
    """Addresses of the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one element."""
        if tag == "a":
            self.found += [value for key, value in attrs if key == "href" and value]
