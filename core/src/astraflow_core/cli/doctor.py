"""``astraflow doctor [FILE]``: what is here, what is missing, and the command that mends it."""

from __future__ import annotations

import argparse

from astraflow_core.cli.output import print_json
from astraflow_core.cli.run import add_overrides

_MARKS = {"ok": "ok      ", "warning": "warning ", "problem": "PROBLEM "}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "doctor", help="say what is missing here, or why a run cannot start"
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="also check this run's TOML file")
    add_overrides(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 2 if the given run cannot start."""
    from dataclasses import asdict

    from astraflow_core.catalog import Catalog
    from astraflow_core.cli.diagnosis import of_machine, of_plugins, of_run

    findings = [*of_machine(), *of_plugins(Catalog.discover())]
    if arguments.file is not None:
        findings += of_run(arguments.file, arguments.overrides)
    if arguments.json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            print(f"{_MARKS[finding.level]}{finding.subject}: {finding.text}")
            if finding.fix:
                print(f"{'':8}→ {finding.fix}")
    return 2 if any(finding.level == "problem" for finding in findings) else 0
