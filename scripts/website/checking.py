"""Look at the built pages: every link within the site has a target, and nothing is loaded from another host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "embed": "src",
    "object": "data",
}
LOADED_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "manifest",
}
_OF_STYLE = re.compile(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")\s]+)""")


class Page(HTMLParser):
    """What a page links to, what it loads, and the names in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = _OF_STYLE.findall(text)
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one element."""
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and LOADED_LINKS & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))
        elif tag in LOADED and given.get(LOADED[tag]):
            self.loads.append(given[LOADED[tag]])


def problems(site: Path) -> list[str]:
    """What is wrong with the pages in a folder."""
    pages = {f: Page(f.read_text(encoding="utf-8")) for f in sorted(site.rglob("*.html"))}
    wrong = []
    for file, page in pages.items():
        where = file.relative_to(site)
        wrong += [f"{where} loads {each}" for each in page.loads if _foreign(each)]
        wrong += [f"{where}: {each}" for each in _dead(file, page, pages)]
    for style in sorted(site.rglob("*.css")):
        found = _OF_STYLE.findall(style.read_text(encoding="utf-8"))
        wrong += [f"{style.relative_to(site)} loads {each}" for each in found]
    return wrong


def _foreign(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme in ("http", "https")


def _dead(file: Path, page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    """Links to what is not there."""
    for link in sorted(set(page.links)):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            yield f"link to {link}, which does not exist"
        elif (
            parts.fragment
            and target in pages
            and unquote(parts.fragment) not in pages[target].names
        ):
            yield f"link to {link}, but that page has no {parts.fragment}"
