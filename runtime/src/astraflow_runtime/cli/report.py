"""``astraflow report``: the table and the picture of a finished run."""

from __future__ import annotations

import argparse
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.run_directory import add_run, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="as --run has it; several, with --html, are compared",
    )
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="write a page with tables, curves and configuration, which needs no other file",
    )
    parser.add_argument(
        "--compare",
        metavar="OTHER",
        nargs="+",
        default=[],
        help="with --html: other runs to compare with, at most 7",
    )
    parser.set_defaults(command=run)
    teach(
        parser,
        "your-run.md",
        "report",
        "report --run runs/quickstart-20260102-030405 --json",
        "report quickstart-20260102-030405 quickstart-20260101-000000 --html report.html",
        "report --html report.html --compare quickstart-20260101-000000",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the launcher's report."""
    from astraflow_runtime.launch.results.report import report_command

    if (arguments.compare or arguments.runs[1:]) and not arguments.html:
        raise UserError("several runs are compared on a page: give --html FILE too")
    if arguments.runs and arguments.run is not None:
        raise UserError(
            f"--run {arguments.run}: {arguments.runs[0]} is given, too; name a run once"
        )
    directories = [find_run(run) for run in arguments.runs or [arguments.run]]
    if arguments.html is None:
        return report_command(directories[0], json_output=arguments.json)
    others = [find_run(other, named_by="--compare") for other in arguments.compare]
    _write_page(arguments.html, directories + others)
    return 0


def _write_page(file: Path, directories: list[Path]) -> None:
    from astraflow_runtime.cli.html_report import MOST_COMPARED, html_report
    from astraflow_wire.host.disk import replace_file

    if len(directories) > MOST_COMPARED:
        raise UserError(f"--compare: {len(directories)} runs; a page has {MOST_COMPARED} at most")
    if twice := [path for path in directories if directories.count(path) > 1]:
        raise UserError(f"--compare: {twice[0]} is given twice")
    if not file.parent.is_dir():
        raise UserError(f"--html {file}: there is no folder {str(file.parent)!r}; make it")
    page = html_report(directories)
    try:
        replace_file(file, page)
    except OSError as error:
        raise UserError(f"--html {file}: it cannot be written: {error.strerror}") from error
    print_line(f"{file}: {len(page.encode()) / 1e6:.1f} MB")
