"""Reports in a folder: files of JSON, and those inside wheels."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath

import msgspec
from packaging.utils import canonicalize_name

from astraflow_core.errors import UserError
from astraflow_runtime.cli.installation.check_report import FILE, LARGEST, digest_of_contents
from astraflow_runtime.cli.installation.links import left_out, links_of
from astraflow_runtime.cli.installation.plugin_index.entries import (
    IndexedLink,
    IndexEntry,
    NoReport,
    entry_of,
)

MOST_FILES = 20_000
LARGEST_PACKAGES = 1 << 28
"""Bytes of all files of a wheel, unpacked."""
_NOT_PACKAGES = (".dist-info", ".data")
_NOT_READ = (NoReport, OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError)
"""``RuntimeError`` is what ``zipfile`` raises for encrypted members and for methods that it does not know."""


@dataclass(frozen=True, slots=True)
class PublishedReport:
    """What an index says of a version, its report as it was found, the README if it was in a wheel, and the links of its
    metadata that no page shows."""

    entry: IndexEntry
    report: bytes
    readme: str = ""
    not_shown: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """Name of its files in the index, without suffix."""
        return self.entry.stem


def collect(folder: Path, leave_out: Path | None = None) -> tuple[list[PublishedReport], list[str]]:
    """The newest first of each distribution, one for each version; and the files that are none, each with the reason.
    Files below ``leave_out``, a folder in ``folder``, are not read. Raises :class:`UserError` if there is no such folder."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give one with reports or wheels")
    skipped = leave_out.resolve() if leave_out is not None else None
    if skipped is not None and folder.resolve() not in skipped.parents:
        skipped = None
    found: dict[tuple[str, str], PublishedReport] = {}
    problems: list[str] = []
    for number, file in enumerate(sorted(folder.rglob("*"))):
        if number >= MOST_FILES:
            raise UserError(f"{folder} has more than {MOST_FILES} files; give a folder of reports")
        if file.suffix not in (".json", ".whl") or not file.is_file():
            continue
        if skipped is not None and skipped in file.resolve().parents:
            continue
        place = file.relative_to(folder).as_posix()
        try:
            for published in _published(file):
                problems += [f"{place}: {link}" for link in published.not_shown]
                key = (published.entry.name, published.entry.version)
                other = found.setdefault(key, published)
                if other.entry.digest != published.entry.digest:
                    name, version = published.entry.name, published.entry.version
                    problems.append(f"{place}: another report of {name} {version}")
                elif not other.readme:
                    found[key] = published
        except _NOT_READ as error:
            problems.append(f"{place}: {error}")
    newest = sorted(found.values(), key=lambda each: each.entry.order, reverse=True)
    return sorted(newest, key=lambda each: each.entry.name), problems


def _published(file: Path) -> Iterator[PublishedReport]:
    if file.suffix == ".json":
        with file.open("rb") as opened:
            report = _bounded(opened.read(LARGEST + 1))
        yield PublishedReport(entry_of(report), report)
        return
    with zipfile.ZipFile(file) as wheel:
        names = _in_folder(wheel, f"/{FILE}")
        if not names:
            raise NoReport(f"the wheel has no {FILE} in its package")
        for name in names:
            report = _member(wheel, name)
            entry = entry_of(report)
            metadata = _metadata(wheel)
            links = msgspec.convert(links_of(metadata), list[IndexedLink])
            told = (canonicalize_name(str(metadata["Name"])), str(metadata["Version"]))
            if told != (entry.name, entry.version):
                raise NoReport(
                    f"its report is for {entry.name} {entry.version}, not for {' '.join(told)}"
                )
            if entry.files not in _digests(wheel, name):
                raise NoReport(
                    "its report is for other files: they were changed after the check; check again, and build the wheel with "
                    "the new report"
                )
            entry = msgspec.structs.replace(entry, links=links or entry.links)
            yield PublishedReport(entry, report, _readme(metadata), tuple(left_out(metadata)))


def _digests(wheel: zipfile.ZipFile, report: str) -> set[str]:
    """Of the files of the package that has the report, and of all packages: those with a manifest are checked."""
    names = [PurePosixPath(info.filename) for info in wheel.infolist() if not info.is_dir()]
    if sum(info.file_size for info in wheel.infolist()) > LARGEST_PACKAGES:
        raise NoReport(f"its files have more than {LARGEST_PACKAGES >> 20} MiB")
    packaged = sorted(
        n for n in names if len(n.parts) > 1 and not n.parts[0].endswith(_NOT_PACKAGES)
    )
    return {
        digest_of_contents((n, wheel.read(str(n))) for n in packaged if n.parts[0] in folders)
        for folders in ({PurePosixPath(report).parts[0]}, {n.parts[0] for n in packaged})
    }


def _in_folder(wheel: zipfile.ZipFile, end: str) -> list[str]:
    return [n for n in wheel.namelist() if n.count("/") == 1 and n.endswith(end)]


def _metadata(wheel: zipfile.ZipFile) -> Message:
    """Raises :class:`NoReport` if the wheel has none."""
    names = _in_folder(wheel, ".dist-info/METADATA")
    if not names:
        raise NoReport("the wheel has no METADATA")
    return Parser().parsestr(_member(wheel, names[0]).decode("utf-8", "replace"))


def _readme(metadata: Message) -> str:
    return str(metadata.get_payload()).strip() or str(metadata["Description"] or "").strip()


def _member(wheel: zipfile.ZipFile, name: str) -> bytes:
    with wheel.open(name) as packed:
        return _bounded(packed.read(LARGEST + 1))


def _bounded(content: bytes) -> bytes:
    if len(content) > LARGEST:
        raise NoReport(f"more than {LARGEST >> 20} MiB")
    return content
