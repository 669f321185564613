"""``astraflow report DIR``: the table and the picture of a finished run."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("report", help="summarise a finished run")
    parser.add_argument("directory", metavar="DIR", type=Path, help="run directory")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Hand over to the launcher's report."""
    from astraflow_core.launch.report import report_command

    return report_command(arguments.directory, json_output=arguments.json)
