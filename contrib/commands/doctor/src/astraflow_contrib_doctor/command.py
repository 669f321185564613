"""``astraflow doctor [FILE]``: what is here, what is missing, and whether the numbers of a run are right."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line
from astraflow_runtime.cli.run import add_overrides

if TYPE_CHECKING:
    from astraflow_contrib_doctor.finding import Finding

_MARKS = {"ok": "ok      ", "warning": "warning ", "problem": "PROBLEM "}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Without FILE: interpreter, machine and plugins. With FILE also: whether that run can start, and then, in "
        "a short start of the engine and the trainer of each policy, whether their log-probs agree."
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="also check this run's TOML file")
    add_overrides(parser)
    parser.add_argument(
        "--static", action="store_true", help="start nothing: skip the numerical checks"
    )
    parser.add_argument(
        "--max-gap",
        type=float,
        metavar="NATS",
        help="largest mean difference allowed between the log-probs of engine and trainer (default: 0.05)",
    )
    parser.add_argument(
        "--plugins",
        action="store_true",
        help="list each plugin with its version, also those without a problem",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with each plugin")
    parser.set_defaults(command=run)
    teach(parser, "doctor.md", "doctor", "doctor examples/quickstart.toml --static")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 2 if the given run cannot start or would learn from wrong numbers."""
    from dataclasses import asdict

    found = []
    whole = arguments.json or arguments.plugins
    for finding in _findings(arguments) if whole else _summarised(_findings(arguments)):
        found.append(finding)
        if not arguments.json:
            print_line(f"{_MARKS[finding.level]}{finding.subject}: {finding.text}")
            if finding.fix:
                print_line(f"{'':8}→ {finding.fix}")
    if arguments.json:
        print_json([asdict(finding) for finding in found])
    return 2 if any(finding.level == "problem" for finding in found) else 0


def _summarised(findings: Iterator[Finding]) -> Iterator[Finding]:
    """One line in the place of the plugins without a problem, which come one after the other."""
    from astraflow_contrib_doctor.diagnosis import PLUGIN
    from astraflow_contrib_doctor.finding import Finding

    usable = 0
    for finding in findings:
        if finding.subject.startswith(PLUGIN) and finding.level == "ok":
            usable += 1
            continue
        if usable and not finding.subject.startswith((PLUGIN, "tracker ")):
            yield Finding("ok", "plugins", f"{usable} without a problem; --plugins lists them")
            usable = 0
        yield finding
    if usable:
        yield Finding("ok", "plugins", f"{usable} without a problem; --plugins lists them")


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    from astraflow_contrib_doctor.diagnosis import of_machine, of_plugins, of_run
    from astraflow_contrib_doctor.finding import Finding
    from astraflow_core.catalog import Catalog
    from astraflow_core.errors import ConfigError

    yield from of_machine()
    yield from of_plugins(Catalog.discover())
    file = arguments.file
    if file is None:
        return
    from astraflow_runtime.config.loading import load_config

    try:
        loaded = load_config(file, arguments.overrides)
    except ConfigError as error:
        for problem in error.problems:
            yield Finding("problem", file, problem, f"edit {error.source or file}")
        return
    sound = True
    for finding in of_run(loaded, file):
        sound = sound and finding.level != "problem"
        yield finding
    if sound and not arguments.static:
        from astraflow_contrib_doctor.preflight import MOST_GAP, preflight

        yield from preflight(loaded, MOST_GAP if arguments.max_gap is None else arguments.max_gap)
