"""``astraflow plugins index`` and ``astraflow plugins search``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from astraflow_runtime.cli.installation.plugin_index.entries import IndexEntry

_PAGE = "index.html"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare both, below ``plugins``."""
    making = commands.add_parser("index", help="make an index of plugins from reports of checks")
    making.description = (
        "Makes a page and an index.json of the reports of `astraflow plugin check --json` in a folder, as files or inside "
        "wheels. What is no report is named and left out; exit code 2 if nothing is left."
    )
    making.add_argument("reports", metavar="REPORTS", type=Path, help="folder of reports or wheels")
    making.add_argument(
        "--out", metavar="FOLDER", type=Path, required=True, help="where to write; it is made"
    )
    making.set_defaults(command=make)
    teach(making, "write-a-plugin.md", "plugins index reports --out index")
    searching = commands.add_parser("search", help="search an index of plugins")
    searching.add_argument(
        "words",
        metavar="WORD",
        nargs="*",
        help="in the name of a distribution, or in kind, name or capabilities of a component; all must be found",
    )
    searching.add_argument(
        "--index", metavar="FOLDER|URL", required=True, help="what `astraflow plugins index` wrote"
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
    import msgspec

    from astraflow_runtime.cli.installation.plugin_index.collected import collect
    from astraflow_runtime.cli.installation.plugin_index.entries import PluginIndex
    from astraflow_runtime.cli.installation.plugin_index.page import as_page
    from astraflow_runtime.cli.installation.plugin_index.reading import FILE
    from astraflow_runtime.telemetry.printable import shown

    entries, problems = collect(arguments.reports)
    for problem in problems:
        print_line(f"left out: {shown(problem)}")
    if not entries:
        raise UserError(
            f"{arguments.reports} has no report; `astraflow plugin check --json > report.json` makes one"
        )
    out: Path = arguments.out
    content = msgspec.json.format(msgspec.json.encode(PluginIndex(1, entries)), indent=1)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / FILE).write_bytes(content + b"\n")
        (out / _PAGE).write_text(as_page(entries), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}") from error
    print_line(f"wrote {out / _PAGE} and {out / FILE}: {len(entries)} reports")
    return 0


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
            (e.name, e.version, standing(e, API_VERSION), ", ".join(e.components), e.digest[:15])
            for e in found
        ]
        print_table(("DISTRIBUTION", "VERSION", "WITH THIS CORE", "PROVIDES", "REPORT"), rows)
    else:
        print_line(f"nothing in {arguments.index} has {' and '.join(arguments.words)}")
    return 0 if found else 1


def _text(entry: IndexEntry) -> str:
    flags = [flag for p in entry.plugins for c in p.components for flag in c.capabilities]
    return " ".join([entry.name, *entry.components, *flags]).lower()
