"""``astraflow plugin check``: whether a plugin is what others may expect of one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from astraflow_contrib_plugin.arguments import add_common, examined
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
    add_common(parser, _DEADLINE_S, "mypy, and for the tests", "the report, with its digest,")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="also write the report as an HTML page"
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
    """Print each result as it is known; on standard error where standard output gets the report."""
    from astraflow_contrib_plugin.checking.report import PluginCheck, as_html

    page: Path | None = arguments.html
    if page is not None and not page.parent.is_dir():
        raise UserError(f"--html {page}: there is no folder {page.parent}; create it first")
    stream = sys.stderr if arguments.json else sys.stdout
    with examined(arguments) as (target, work):
        print_line(f"{target.name} {target.version}", stream)
        check = PluginCheck(target, work, arguments.deadline)
        for result in check.results():
            print_line(f"{result.verdict:<12} {result.name:<13} {result.summary}".rstrip(), stream)
            for line in result.problems:
                print_line(f"{'':12} → {line}", stream)
        report = check.report()
    if page is not None:
        try:
            page.write_text(as_html(report), encoding="utf-8")
        except OSError as error:
            raise UserError(f"--html {page}: {error.strerror}") from error
    print_line(f"{report['verdict']}; report {report['digest']}", stream)
    if arguments.json:
        print_json(report)
    return 1 if report["verdict"] == "failed" else 0
