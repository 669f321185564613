"""``astraflow plugin check``: whether a plugin is what others may expect of one."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line

_DEADLINE_S = 900.0


def add_check(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Examines an installed distribution, or builds and examines the one in a folder: manifest, requirements, licence, "
        "README, imports, types, keys, its own tests, and the conformance suites of its kinds. It runs the plugin's code. Exit code "
        "0: nothing failed; 1: a check failed; 2: there is nothing to check."
    )
    parser.add_argument(
        "target",
        metavar="PATH|DIST",
        nargs="?",
        default=".",
        help="folder with a pyproject.toml, or an installed distribution or plugin; default: this folder",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the report, with its digest, as JSON"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write the report as a page, too")
    parser.add_argument(
        "--deadline",
        metavar="SECONDS",
        type=float,
        default=_DEADLINE_S,
        help="most seconds for mypy, and for the tests; default: 900",
    )
    parser.set_defaults(command=run)
    teach(
        parser,
        "write-a-plugin.md",
        "plugin check",
        "plugin check astraflow-plugin-brevity --json",
        "plugin check ../brevity --html report.html",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print each result as it is known."""
    from astraflow_contrib_plugin.checking.report import PluginCheck, as_html
    from astraflow_contrib_plugin.checking.target import resolve

    if not 0 < arguments.deadline < float("inf"):
        raise UserError(f"--deadline {arguments.deadline:g}: expected seconds above 0")
    page: Path | None = arguments.html
    if page is not None and not page.parent.is_dir():
        raise UserError(f"--html {page}: there is no folder {page.parent}; make it first")
    work = Path(tempfile.mkdtemp(prefix="astraflow-check-")).resolve()
    try:
        target = resolve(arguments.target, work)
        if not arguments.json:
            print_line(f"{target.name} {target.version}")
        check = PluginCheck(target, work, arguments.deadline)
        for result in check.results():
            if not arguments.json:
                print_line(f"{result.verdict:<12} {result.name:<13} {result.summary}".rstrip())
                for line in result.problems:
                    print_line(f"{'':12} → {line}")
        report = check.report()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if page is not None:
        try:
            page.write_text(as_html(report), encoding="utf-8")
        except OSError as error:
            raise UserError(f"--html {page}: {error.strerror}") from error
    if arguments.json:
        print_json(report)
    else:
        print_line(f"{report['verdict']}; report {report['digest']}")
    return 1 if report["verdict"] == "failed" else 0
