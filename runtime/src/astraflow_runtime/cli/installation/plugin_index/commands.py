"""``astraflow plugins index`` and ``astraflow plugins search``."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from astraflow_runtime.cli.installation.plugin_index.collected import PublishedReport
    from astraflow_runtime.cli.installation.plugin_index.entries import IndexEntry

_PAGE = "index.html"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare both, below ``plugins``."""
    making = commands.add_parser("index", help="make an index of plugins from reports of checks")
    making.description = (
        "Makes a page and an index.json of the reports of `astraflow plugin check --json` in a folder, as files or inside "
        "wheels, or in the wheels of a simple index, with links to the pages of the authors, the reports, and the READMEs of wheels. Other files are named and left "
        "out; exit code 2 if nothing is left."
    )
    making.add_argument(
        "reports",
        metavar="REPORTS",
        help="folder of reports or wheels, or URL of a simple index or of a page with links to wheels",
    )
    making.add_argument(
        "--distribution",
        metavar="NAME",
        action="append",
        default=[],
        help="of a simple index, only this distribution; may be repeated",
    )
    making.add_argument(
        "--out", metavar="FOLDER", type=Path, required=True, help="folder to write; it is created"
    )
    making.set_defaults(command=make)
    teach(
        making,
        "write-a-plugin.md",
        "plugins index reports --out index",
        "plugins index https://example.org/simple --distribution astraflow-plugin-brevity --out index",
    )
    searching = commands.add_parser("search", help="search an index of plugins")
    searching.add_argument(
        "words",
        metavar="WORD",
        nargs="*",
        help="in name or summary of a distribution, or in kind, name or capabilities of a component; all must be found",
    )
    searching.add_argument(
        "--index",
        metavar="FOLDER|URL",
        required=True,
        help="the index that `astraflow plugins index` wrote",
    )
    searching.add_argument("--json", action="store_true", help="print JSON")
    searching.set_defaults(command=search)
    teach(
        searching,
        "write-a-plugin.md",
        "plugins search reward --index index",
        "plugins search --index https://example.org/plugins --json",
    )


def make(arguments: argparse.Namespace) -> int:
    """Write the page and the index."""
    from astraflow_runtime.cli.installation.plugin_index.reading import FILE
    from astraflow_runtime.telemetry.printable import shown

    out: Path = arguments.out
    found, problems = _collected(arguments.reports, arguments.distribution, out)
    for problem in problems:
        print_line(f"left out: {shown(problem)}")
    if not found:
        raise UserError(
            f"{arguments.reports} has no report that can be used; `astraflow plugin check --json > report.json` makes one"
        )
    try:
        _write(out, found)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}") from error
    reports = "1 report" if len(found) == 1 else f"{len(found)} reports"
    print_line(f"wrote {out / _PAGE} and {out / FILE}: {reports}")
    return 0


def _collected(
    place: str, names: Sequence[str], out: Path
) -> tuple[list[PublishedReport], list[str]]:
    """The reports of a folder or a simple index, and what was left out."""
    from astraflow_runtime.cli.installation.plugin_index.collected import collect
    from astraflow_runtime.cli.installation.plugin_index.reading import is_web
    from astraflow_runtime.cli.installation.plugin_index.simple_index import download

    if is_web(place):
        with tempfile.TemporaryDirectory(prefix="astraflow-index-") as folder:
            problems = download(place, names, Path(folder))
            found, more = collect(Path(folder))
            return found, problems + more
    if names:
        raise UserError(f"--distribution chooses from a simple index; {place} is a folder")
    return collect(Path(place), leave_out=out)


def _write(out: Path, found: Sequence[PublishedReport]) -> None:
    """The index, its page, and the files that the page links to; READMEs as plain text, for they may contain anything."""
    import msgspec

    from astraflow_runtime.cli.installation.plugin_index.entries import PluginIndex
    from astraflow_runtime.cli.installation.plugin_index.page import READMES, REPORTS, as_page
    from astraflow_runtime.cli.installation.plugin_index.reading import FILE

    before = _stems_of(out / FILE)
    for folder in (REPORTS, READMES):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for gone in before - {each.stem for each in found if each.readme}:
        (out / READMES / f"{gone}.txt").unlink(missing_ok=True)
    for gone in before - {each.stem for each in found}:
        (out / REPORTS / f"{gone}.json").unlink(missing_ok=True)
    for each in found:
        (out / REPORTS / f"{each.stem}.json").write_bytes(each.report)
        if each.readme:
            (out / READMES / f"{each.stem}.txt").write_text(each.readme + "\n", encoding="utf-8")
    index = PluginIndex(1, [each.entry for each in found])
    (out / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(index), indent=1) + b"\n")
    (out / _PAGE).write_text(as_page(found), encoding="utf-8")


def _stems_of(index: Path) -> set[str]:
    """Names of the files of the existing index; no other file is removed. Raises
    :class:`UserError` if it is not an index."""
    from astraflow_runtime.cli.installation.plugin_index.reading import read_index

    if not index.exists():
        return set()
    return {entry.stem for entry in read_index(str(index)).distributions}


def search(arguments: argparse.Namespace) -> int:
    """Print what has all words; exit code 1 if nothing has."""
    import msgspec

    from astraflow_core.component import API_VERSION
    from astraflow_runtime.cli.installation.plugin_index.page import standing
    from astraflow_runtime.cli.installation.plugin_index.reading import read_index

    words = [word.lower() for word in arguments.words]
    found = [
        entry
        for entry in read_index(arguments.index).distributions
        if all(word in _text(entry) for word in words)
    ]
    if arguments.json:
        print_json([msgspec.to_builtins(entry) for entry in found])
    elif found:
        rows = [
            (
                *(
                    e.name,
                    e.version,
                    standing(e, API_VERSION),
                    ", ".join(e.components),
                    e.digest[:15],
                ),
                e.links[0].url if e.links else "–",
            )
            for e in found
        ]
        heads = ("DISTRIBUTION", "VERSION", "WITH THIS CORE", "PROVIDES", "REPORT", "PAGE")
        print_table(heads, rows)
    else:
        print_line(f"nothing in {arguments.index} has {' and '.join(arguments.words)}")
    return 0 if found else 1


def _text(entry: IndexEntry) -> str:
    flags = [flag for p in entry.plugins for c in p.components for flag in c.capabilities]
    return " ".join([entry.name, entry.summary, *entry.components, *flags]).lower()
