"""``astraflow plugins why NAME [FILE]``: why a plugin or component is chosen, or cannot be."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json
from astraflow_runtime.cli.run import add_overrides

if TYPE_CHECKING:
    from astraflow_runtime.cli.installation.plugin_status import ComponentReport


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command, below ``plugins``."""
    parser = commands.add_parser(
        "why", help="explain why a plugin or component is selected or cannot be used"
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a plugin, its distribution, a component, KIND/NAME, PLUGIN/NAME or [KIND/]MODULE:ATTR",
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="the TOML file of the run to explain it for"
    )
    add_overrides(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)
    teach(
        parser,
        "write-a-plugin.md",
        "plugins why transport/delta",
        "plugins why grpo examples/quickstart.toml",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the reports on a name; exit code 2 if it means nothing, or a MODULE:ATTR that no run
    can use.
    """
    from astraflow_core.catalog import Catalog
    from astraflow_runtime.cli.installation.plugin_status import component_reports

    if arguments.file is None:
        told = component_reports(Catalog.discover(), arguments.name)
    else:
        from astraflow_runtime.cli.installation.naming import in_run

        told = in_run(arguments.name, arguments.file, arguments.overrides)
    if arguments.json:
        print_json([_record(standing) for standing in told])
        return _code(told)
    for index, standing in enumerate(told):
        if index:
            print()
        _show(standing)
    return _code(told)


def _code(told: list[ComponentReport]) -> int:
    # An installed component is explained in any state; a path that leads to nothing is an error,
    # like a wrong name.
    unusable = all(":" in each.subject and each.state == "broken" for each in told)
    return 2 if unusable else 0


def _record(standing: ComponentReport) -> dict[str, Any]:
    return {
        "subject": standing.subject,
        "state": standing.state,
        "verdict": standing.verdict,
        "fix": standing.fix or None,
        "traceback": list(standing.traceback_summary),
        **standing.facts,
    }


def _show(standing: ComponentReport) -> None:
    print(f"{standing.subject}: {standing.verdict}")
    if standing.fix:
        print(f"  → {standing.fix}")
    for line in standing.traceback_summary:
        print(f"  | {line}")
    for name, fact in standing.facts.items():
        if name == "capabilities":
            fact = ", ".join(fact)
        lines = fact if isinstance(fact, list) else str(fact or "").splitlines()
        for number, line in enumerate(lines):
            label = name.replace("_", " ") if number == 0 else ""
            print(f"  {label:<18}{line}".rstrip())
