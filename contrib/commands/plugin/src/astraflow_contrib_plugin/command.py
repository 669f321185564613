"""``astraflow plugin``: ``new`` writes a distribution with a plugin of one kind, ``check`` examines one, ``bench``
measures one."""

from __future__ import annotations

import argparse
from pathlib import Path

from astraflow_contrib_plugin.bench_command import add_bench
from astraflow_contrib_plugin.check_command import add_check
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the parts."""
    parts = parser.add_subparsers(metavar="COMMAND", title="commands", required=True)
    _add_new(parts.add_parser("new", help="write a package with a working plugin"))
    add_check(parts.add_parser("check", help="examine a plugin, and report what was found"))
    add_bench(parts.add_parser("bench", help="compare a plugin with the shipped one of its kind"))
    teach(parser, "write-a-plugin.md", "plugin new reward brevity", "plugin check", "plugin bench")


def _add_new(parser: argparse.ArgumentParser) -> None:
    from astraflow_contrib_plugin.scaffolding import KINDS

    parser.description = (
        "Writes a folder with a working plugin: implementation, keys, tests on the conformance suite of its kind, "
        "an example run, CI and licence. It overwrites nothing."
    )
    parser.add_argument("kind", metavar="KIND", help=f"one of: {', '.join(KINDS)}")
    parser.add_argument(
        "name", metavar="NAME", help="name of the component: lower-case letters, digits and '_'"
    )
    parser.add_argument(
        "--directory",
        metavar="DIR",
        type=Path,
        help="folder to create; default: astraflow_plugin_NAME",
    )
    parser.add_argument(
        "--from-example",
        action="store_true",
        help="start from the example of this kind in the documents, not from the smaller template",
    )
    parser.set_defaults(command=run)
    teach(
        parser,
        "write-a-plugin.md",
        "plugin new reward brevity",
        "plugin new data_policy resting --from-example",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and say what to do next."""
    from astraflow_contrib_plugin.from_example import files_of_example
    from astraflow_contrib_plugin.scaffolding import PluginNames, check, files_of, write
    from astraflow_core.catalog import Catalog

    names = PluginNames(arguments.kind, arguments.name)
    check(names, Catalog.discover())
    folder = arguments.directory or Path(names.module)
    files = files_of_example(names) if arguments.from_example else files_of(names)
    written = write(folder, files)
    for path in written:
        print_line(f"wrote {path}")
    print_line("next:")
    print_line(f"  cd {folder}")
    print_line("  pip install -e '.[test]'")
    print_line("  pytest")
    print_line("  astraflow plugin check")
    if names.kind == "command":
        print_line(f"  astraflow {names.component} --help")
    else:
        print_line("  pip install -e '.[run]'")
        print_line("  astraflow run run.toml")
    return 0
