"""Build distributions twice, from two copies of the tree, and compare the results byte by byte."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path

import wheels
from installers import Failure

from releasing.stamping import Member

LICENCE = "LICENSE"


def closure(names: Iterable[str], all_of_them: dict[str, Member]) -> list[Member]:
    """The distributions named and those of the tree that they need, in the order of their places; all if none is named."""
    wanted = list(names) or list(all_of_them)
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in all_of_them:
            raise Failure(
                f"no distribution {name!r} in this tree; docs/distributions.md lists them"
            )
        if name not in found:
            found.add(name)
            wanted += all_of_them[name].ours()
    return [member for name, member in all_of_them.items() if name in found]


def epoch(day: date) -> int:
    """``SOURCE_DATE_EPOCH`` of a release: its day begins, in UTC. So whoever has the commit builds the same bytes."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


def build_twice(
    trees: tuple[Path, Path], chosen: list[Member], day: date, out: Path
) -> dict[str, tuple[Path, Path]]:
    """Name → (sdist, wheel) in ``out``; a :class:`Failure` names the files of which two builds differ."""
    made = []
    for tree in trees:
        folders = {tree / member.path.relative_to(trees[0]): member.name for member in chosen}
        for folder in folders:  # so that each distribution carries the licence's text
            shutil.copyfile(tree / LICENCE, folder / LICENCE)
        place, work = tree.with_name(f"{tree.name}-built"), tree.with_name(f"{tree.name}-sdists")
        place.mkdir()
        work.mkdir()
        built = wheels.build(folders, place, work, epoch(day))
        made.append({folders[folder]: files for folder, files in built.items()})
    first, second = made
    different = [
        one.name
        for name, files in first.items()
        for one, other in zip(files, second[name], strict=True)
        if digest(one) != digest(other)
    ]
    if different:
        raise Failure("two builds of the same tree differ: " + ", ".join(different))
    found = {}
    for name, files in first.items():
        sdist, wheel = (Path(shutil.copy2(file, out)) for file in files)
        found[name] = (sdist, wheel)
    return found


def digest(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_sums(folder: Path) -> Path:
    """``SHA256SUMS`` of all files of a folder, in the form of ``sha256sum --check``."""
    sums = folder / "SHA256SUMS"
    files = [f for f in sorted(folder.iterdir()) if f.is_file() and f != sums]
    sums.write_text("".join(f"{digest(f)}  {f.name}\n" for f in files), encoding="utf-8")
    return sums
