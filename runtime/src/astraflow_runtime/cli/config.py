"""``astraflow config show | schema | explain``: the resolved values of a run and the meaning of its
keys.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json
from astraflow_runtime.cli.run import add_overrides

if TYPE_CHECKING:
    from astraflow_runtime.config.show import Value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the three parts."""
    teach(
        parser,
        "configuration.md",
        "config show examples/quickstart.toml",
        "config explain run.max_staleness",
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = inner.add_parser("show", help="show every value of a run and its origin")
    show.add_argument("file", metavar="FILE", help="the run's TOML file")
    add_overrides(show)
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(command=run_show)
    teach(show, "configuration.md", "config show examples/quickstart.toml --set run.steps=20")
    schema = inner.add_parser("schema", help="list the keys of the core, one per line")
    schema.add_argument("--json", action="store_true", help="print the JSON schema")
    schema.set_defaults(command=run_schema)
    teach(schema, "configuration.md", "config schema", "config schema --json")
    explain = inner.add_parser(
        "explain",
        help="explain a key",
        description="Explains keys of the configuration. `astraflow trace` shows what happened to a prompt or a "
        "group.",
    )
    explain.add_argument(
        "key",
        metavar="KEY",
        help="run.max_staleness, policies.NAME, policies.NAME.trainer.lr, KIND/NAME or KIND/NAME.KEY",
    )
    explain.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="TOML file of the run whose values are shown",
    )
    explain.add_argument("--json", action="store_true", help="print JSON")
    explain.set_defaults(command=run_explain)
    teach(
        explain,
        "configuration.md",
        "config explain run.max_staleness",
        "config explain policies.solver.trainer.lr examples/quickstart.toml",
        "config explain transport/delta",
    )


def run_show(arguments: argparse.Namespace) -> int:
    """The resolved values with their origins."""
    from astraflow_runtime.config.loading import load_config
    from astraflow_runtime.config.show import values

    shown = values(load_config(arguments.file, arguments.overrides, workflow_given=True))
    if arguments.json:
        print_json([{"key": v.key, "value": v.value, "origin": v.origin} for v in shown])
        return 0
    lines = [(f"{v.key} = {json.dumps(v.value, ensure_ascii=False)}", v.origin) for v in shown]
    width = min(60, max(len(line) for line, _ in lines))
    for line, origin in lines:
        print(f"{line:<{width}}  # {origin}")
    return 0


def run_schema(arguments: argparse.Namespace) -> int:
    """All keys of the core."""
    from astraflow_core.config.models import RunConfig
    from astraflow_runtime.config.explain import core_keys

    if arguments.json:
        print_json(RunConfig.model_json_schema())
        return 0
    for key in core_keys():
        print(key.line())
    return 0


def run_explain(arguments: argparse.Namespace) -> int:
    """The keys that a name means."""
    from dataclasses import asdict

    from astraflow_core.catalog import Catalog
    from astraflow_runtime.config.explain import explain, set_in_run
    from astraflow_runtime.config.loading import load_config

    loaded = load_config(arguments.file, workflow_given=True) if arguments.file else None
    found = explain(arguments.key, loaded.catalog if loaded else Catalog.discover(), loaded)
    there = {key.path: set_in_run(arguments.key, key, loaded) for key in found} if loaded else {}
    if arguments.json:
        values = {
            path: {"values": [asdict(value) for value in each]} for path, each in there.items()
        }
        print_json([{**asdict(key), **values.get(key.path, {})} for key in found])
        return 0
    print("\n\n".join(_with_values(key.text(), there.get(key.path, [])) for key in found))
    return 0


def _with_values(text: str, values: list[Value]) -> str:
    lines = [f"{each.key} = {json.dumps(each.value, ensure_ascii=False)}" for each in values]
    told = (f"\n  here: {line}  # {each.origin}" for line, each in zip(lines, values, strict=True))
    return text + "".join(told)
