"""Reports in a folder: files of JSON, and those inside wheels."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_runtime.cli.installation.check_report import FILE, LARGEST
from astraflow_runtime.cli.installation.plugin_index.entries import IndexEntry, NoReport, entry_of

MOST_FILES = 20_000


def collect(folder: Path) -> tuple[list[IndexEntry], list[str]]:
    """The newest first of each distribution, one entry for each version; and the files that are none, each with the
    reason. Raises :class:`UserError` if there is no such folder."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give one with reports or wheels")
    found: dict[tuple[str, str], IndexEntry] = {}
    problems: list[str] = []
    for number, file in enumerate(sorted(folder.rglob("*"))):
        if number >= MOST_FILES:
            raise UserError(f"{folder} has more than {MOST_FILES} files; give a folder of reports")
        if file.suffix not in (".json", ".whl") or not file.is_file():
            continue
        place = file.relative_to(folder).as_posix()
        try:
            for content in _contents(file):
                entry = entry_of(content)
                key = (entry.name.lower(), entry.version)
                if key in found and found[key].digest != entry.digest:
                    problems.append(f"{place}: another report of {entry.name} {entry.version}")
                    continue
                found[key] = entry
        except (NoReport, OSError, zipfile.BadZipFile) as error:
            problems.append(f"{place}: {error}")
    entries = sorted(found.values(), key=lambda entry: entry.order, reverse=True)
    return sorted(entries, key=lambda entry: entry.name.lower()), problems


def _contents(file: Path) -> Iterator[bytes]:
    if file.suffix == ".json":
        with file.open("rb") as opened:
            yield _bounded(opened.read(LARGEST + 1))
        return
    with zipfile.ZipFile(file) as wheel:
        names = [n for n in wheel.namelist() if n.count("/") == 1 and n.endswith(f"/{FILE}")]
        if not names:
            raise NoReport(f"the wheel has no {FILE} in its package")
        for name in names:
            with wheel.open(name) as packed:
                yield _bounded(packed.read(LARGEST + 1))


def _bounded(content: bytes) -> bytes:
    if len(content) > LARGEST:
        raise NoReport(f"more than {LARGEST >> 20} MiB")
    return content
