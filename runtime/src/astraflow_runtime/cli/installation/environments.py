"""``astraflow env``: separate environments for roles whose backend cannot share ours."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_table

if TYPE_CHECKING:
    from astraflow_runtime.launch.environments import Made


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    teach(parser, "engines.md", "env create sglang --plugin sglang", "env list")
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    create = inner.add_parser(
        "create",
        help="create an environment, or update it",
        description="A role selects it with python = 'env:NAME' in its table.",
    )
    create.add_argument("name", metavar="NAME", help="name of the environment")
    create.add_argument(
        "--plugin", required=True, action="append", metavar="PLUGIN", help="may be repeated"
    )
    create.add_argument(
        "--extra", help="extra of the plugin; default: the one that fits this machine"
    )
    create.add_argument("--python", help="base interpreter; default: this one")
    create.add_argument("--json", action="store_true", help="print JSON")
    create.set_defaults(command=run_create)
    teach(
        create,
        "engines.md",
        "env create sglang --plugin sglang",
        "env create fast --plugin vllm --python python3.12",
    )
    listing = inner.add_parser("list", help="list the environments")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(command=run_list)
    teach(listing, "engines.md", "env list")
    remove = inner.add_parser("remove", help="delete an environment")
    remove.add_argument("name", metavar="NAME", help="environment to delete")
    remove.set_defaults(command=run_remove)
    teach(remove, "engines.md", "env remove sglang")


def run_create(arguments: argparse.Namespace) -> int:
    """Create an environment, with its progress on stdout, or on stderr with ``--json``."""
    from astraflow_core.catalog import Catalog
    from astraflow_runtime.launch.environments import create

    def say(text: str) -> None:
        print(text, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    plugins = list(dict.fromkeys(arguments.plugin))
    made = create(
        arguments.name, plugins, Catalog.discover(), arguments.extra, arguments.python, say
    )
    if arguments.json:
        print_json(_record(made))
    else:
        say(f"select it with python = 'env:{made.name}'")
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    """List the environments, incomplete ones included."""
    from astraflow_core.config.environments import environments_folder
    from astraflow_runtime.launch.environments import environments

    found = environments()
    if arguments.json:
        print_json([_record(made) for made in found])
    elif not found:
        print(f"no environments in {environments_folder()}")
    else:
        rows = [
            (
                made.name,
                ", ".join(made.plugins) if made.key else "incomplete: create or remove it",
                made.python or "-",
                f"{made.bytes / 2**30:.1f} GiB",
                made.created or "-",
                made.folder,
            )
            for made in found
        ]
        print_table(("NAME", "PLUGINS", "PYTHON", "SIZE", "MADE", "FOLDER"), rows)
    return 0


def run_remove(arguments: argparse.Namespace) -> int:
    """Delete one."""
    from astraflow_runtime.launch.environments import remove

    freed = remove(arguments.name)
    print(f"removed {arguments.name!r}, {freed / 2**30:.1f} GiB")
    return 0


def _record(made: Made) -> dict[str, Any]:
    return {
        **asdict(made),
        "interpreter": str(made.interpreter),
        "use": f"env:{made.name}",
        "whole": bool(made.key),
    }
