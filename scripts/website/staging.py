"""Copy the pages and what they link to into a folder for Sphinx; they stay as they are for readers on a forge."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from installers import Failure
from workspace import ROOT, tracked_files

from website import navigation

HERE = Path(__file__).parent
_ORPHAN = "---\norphan: true\n---\n\n"
"""Keeps a page out of the navigation, which every page repeats."""
_LINK = re.compile(
    r"`+[^`]*`+|(?P<open>\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?P<close>\))"
)
_FENCE = re.compile(r"^ *(```|~~~)")
_EXTERNAL = re.compile(r"[a-z]+:", re.IGNORECASE)


def stage(folder: Path, root: Path = ROOT) -> list[Path]:
    """Fill an empty folder; returns the pages of the tree that the site has: those of the navigation, the READMEs of
    packages, and further ones that these link to."""
    listed, waiting = pages_of(root), [*pages_of(root), *readmes_of(root)]
    pages: list[Path] = []
    titles: dict[str, str] = {}
    while waiting:
        page = waiting.pop()
        if page in pages:
            continue
        pages.append(page)
        text, found = relinked(page.read_text(encoding="utf-8"), page, root, folder)
        waiting += found
        if page not in listed:
            text = _ORPHAN + text
        if _of_package(page, root):
            title = text.removeprefix(_ORPHAN).partition("\n")[0].lstrip("# ")
            titles[str(page.relative_to(root).with_suffix(""))] = title
        target = folder / ("index.md" if page == root / "README.md" else page.relative_to(root))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    with (folder / "index.md").open("a", encoding="utf-8") as index:
        index.write("\n" + navigation.index())
    packages = folder / f"{navigation.PACKAGES}.md"
    packages.write_text(navigation.packages(dict(sorted(titles.items()))), encoding="utf-8")
    shutil.copyfile(HERE / "conf.py", folder / "conf.py")
    (folder / "_static").mkdir()
    shutil.copyfile(HERE / "site.css", folder / "_static" / "site.css")
    return pages


def pages_of(root: Path) -> list[Path]:
    """The pages of the navigation: README, docs/, and what the project says of itself."""
    own = [root / f"{name}.md" for name in navigation.PROJECT]
    return [root / "README.md", *sorted((root / "docs").glob("*.md")), *own]


def readmes_of(root: Path) -> list[Path]:
    """The READMEs of packages."""
    return [f for f in tracked_files() if f.is_relative_to(root) and _of_package(f, root)]


def _of_package(page: Path, root: Path) -> bool:
    return (
        page.name == "README.md"
        and (page.parent / "pyproject.toml").exists()
        and page.parent != root
    )


def relinked(text: str, page: Path, root: Path, folder: Path) -> tuple[str, list[Path]]:
    """The text with links that hold on the site, and the pages that it links to: the root's README is the index, a folder
    is its README, and files that are no pages are copied beside the pages."""
    found: list[Path] = []

    def renew(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or _EXTERNAL.match(target):  # code, or a page of the web
            return match[0]
        place = (page.parent / target).resolve()
        if place.is_dir():
            place = place / "README.md"
            if not place.exists():
                return "]"  # a folder that no page describes: its name stays, in brackets
        if not place.is_relative_to(root) or not place.is_file():
            raise Failure(f"{page.relative_to(root)}: link to {target}, which does not exist")
        if place.suffix == ".md":
            found.append(place)
            place = root / "index.md" if place == root / "README.md" else place
        else:
            copied = folder / place.relative_to(root)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, copied)
        relative = os.path.relpath(place, page.parent)
        return f"{match['open']}{relative}{match['anchor'] or ''}{match['close']}"

    lines, fenced = [], False
    for line in text.splitlines(keepends=True):
        fenced ^= bool(_FENCE.match(line))
        lines.append(line if fenced else _LINK.sub(renew, line))
    return "".join(lines), found
