"""``astraflow report DIR``: the table and the picture of a finished run."""

from __future__ import annotations

import argparse
from pathlib import Path

from astraflow_core.cli.output import print_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("report", help="summarise a finished run")
    parser.add_argument("directory", metavar="DIR", type=Path, help="run directory")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Hand over to the launcher's report."""
    import json

    from astraflow_core.errors import UserError

    summary = arguments.directory / "summary.json"
    if not summary.is_file():
        raise UserError(
            f"{arguments.directory} holds no summary.json: give the directory of a run that has ended"
        )
    if arguments.json:
        print_json(json.loads(summary.read_text(encoding="utf-8")))
        return 0
    from astraflow_core.launch.report import print_report

    return print_report(arguments.directory)
