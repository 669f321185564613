"""The section of CHANGELOG.md that the fragments of changelog.d/ make."""

from __future__ import annotations

from collections import defaultdict
from datetime import date
from pathlib import Path

from installers import Failure

from releasing.version import CHANGELOG, SECTION

FOLDER = "changelog.d"
KINDS = ("added", "changed", "deprecated", "removed", "fixed")
NONE_YET = "No release yet.\n"


def fragments(root: Path) -> list[Path]:
    """The files that describe the changes since the last release, in order of name."""
    files = sorted((root / FOLDER).glob("*.md"))
    return [file for file in files if file.name != "README.md"]


def section(version: str, day: date, files: list[Path]) -> str:
    """What is new in a version, as Markdown; a fragment is an item of a list."""
    if not files:
        raise Failure(
            f"{FOLDER}/ has no fragment, so nothing that a user notices has changed; write one as "
            f"{FOLDER}/README.md says"
        )
    items: dict[str, list[str]] = defaultdict(list)
    for file in files:
        kind = file.name.split(".")[-2]
        if kind not in KINDS:
            raise Failure(
                f"{FOLDER}/{file.name}: expected WORDS.KIND.md, KIND one of {', '.join(KINDS)}"
            )
        text = file.read_text(encoding="utf-8").strip().replace("](../", "](")
        if not text:
            raise Failure(f"{FOLDER}/{file.name} is empty")
        items[kind].append("- " + text.replace("\n", "\n  ").replace("\n  \n", "\n\n"))
    parts = [f"## {version} ({day.isoformat()})"]
    for kind in KINDS:
        if items[kind]:
            parts += [f"### {kind.capitalize()}", "\n".join(items[kind])]
    return "\n\n".join(parts) + "\n"


def write(root: Path, version: str, day: date) -> str:
    """Move the fragments into CHANGELOG.md under ``version``; returns the new section."""
    files = fragments(root)
    text = section(version, day, files)
    file = root / CHANGELOG
    before = file.read_text(encoding="utf-8").replace(NONE_YET, "")
    first = SECTION.search(before)
    place = first.start() if first else len(before)
    head = before[:place].rstrip("\n")
    file.write_text(f"{head}\n\n{text}\n{before[place:]}".rstrip("\n") + "\n", encoding="utf-8")
    for each in files:
        each.unlink()
    return text


def section_of(root: Path, version: str) -> str:
    """The section of a version that CHANGELOG.md has already."""
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    for match in SECTION.finditer(text):
        if match["version"] == version:
            following = SECTION.search(text, match.end())
            return (
                text[match.start() : following.start() if following else None].rstrip("\n") + "\n"
            )
    raise Failure(f"{CHANGELOG} has no section of {version}")
