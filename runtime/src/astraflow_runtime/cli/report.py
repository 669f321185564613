"""``astraflow report``: the table and the picture of a finished run."""

from __future__ import annotations

import argparse

from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.run_directory import add_run, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.set_defaults(command=run)
    teach(parser, "your-run.md", "report", "report --run runs/quickstart-20260102-030405 --json")


def run(arguments: argparse.Namespace) -> int:
    """Hand over to the launcher's report."""
    from astraflow_runtime.launch.results.report import report_command

    return report_command(find_run(arguments.run), json_output=arguments.json)
