"""``astraflow plugins why NAME [FILE]``: why a plugin or component is chosen, or cannot be."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from astraflow_core.cli.output import print_json
from astraflow_core.cli.run import add_overrides

if TYPE_CHECKING:
    from astraflow_core.cli.standing import Standing


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command, below ``plugins``."""
    parser = commands.add_parser(
        "why", help="say why a plugin or component is chosen, or cannot be used"
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


def run(arguments: argparse.Namespace) -> int:
    """Tell all that is known of what a name may mean; 2 if it means nothing."""
    from astraflow_core.catalog import Catalog
    from astraflow_core.cli.standing import standings

    if arguments.file is None:
        told = standings(Catalog.discover(), arguments.name)
    else:
        from astraflow_core.cli.naming import in_run

        told = in_run(arguments.name, arguments.file, arguments.overrides)
    if arguments.json:
        print_json([_record(standing) for standing in told])
        return 0
    for index, standing in enumerate(told):
        if index:
            print()
        _show(standing)
    return 0


def _record(standing: Standing) -> dict[str, Any]:
    return {
        "subject": standing.subject,
        "state": standing.state,
        "verdict": standing.verdict,
        "fix": standing.fix or None,
        "traceback": list(standing.gist),
        **standing.facts,
    }


def _show(standing: Standing) -> None:
    print(f"{standing.subject}: {standing.verdict}")
    if standing.fix:
        print(f"  → {standing.fix}")
    for line in standing.gist:
        print(f"  | {line}")
    for name, fact in standing.facts.items():
        if name == "capabilities":
            fact = ", ".join(fact)
        lines = fact if isinstance(fact, list) else str(fact or "").splitlines()
        for number, line in enumerate(lines):
            label = name.replace("_", " ") if number == 0 else ""
            print(f"  {label:<18}{line}".rstrip())
