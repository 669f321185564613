"""``astraflow plugin bench``: what a plugin costs compared with the shipped one of its kind."""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_contrib_plugin.arguments import add_common, examined
from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line

if TYPE_CHECKING:
    from astraflow_contrib_plugin.benching.measured import BenchRequest

_DEADLINE_S = 300.0
_PAIRS, _MOST_PAIRS = 11, 1001
_LARGEST_TASKS = 1 << 24


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Measures the components of an installed distribution, or of the one in a folder, against a shipped one of their "
        "kind, in alternation in one process: time of a unit, on the CPU and on the wall, and the median of the ratios with its "
        "quartiles. It runs the plugin's code. Exit code 0: all were measured; 1: one could not be; 2: there is nothing to "
        "measure."
    )
    add_common(parser, _DEADLINE_S, "each component", "the figures")
    parser.add_argument(
        "--component", metavar="NAME", help="measure only the component of this name"
    )
    parser.add_argument(
        "--keys",
        metavar="TABLE",
        default="",
        help="keys of the component, as in a config: '{ratio = 0.5}'",
    )
    parser.add_argument(
        "--against",
        metavar="NAME",
        default="",
        help="compare with this component instead of the shipped one",
    )
    parser.add_argument(
        "--against-keys",
        metavar="TABLE",
        default="",
        help="keys of the component given by --against",
    )
    parser.add_argument(
        "--tasks",
        metavar="FILE|SOURCE",
        default="",
        help="tasks of an environment, a workflow or a reward: a file with a JSON object on each line, or a prompt source; default: "
        "the prompt source of the distribution, or sums of two numbers",
    )
    parser.add_argument(
        "--model",
        metavar="FOLDER",
        default="",
        help="Hugging Face folder on which an engine or a trainer is measured; default: one of 0.1 M parameters with random "
        "weights and a vocabulary of 27",
    )
    parser.add_argument(
        "--pairs",
        metavar="N",
        type=int,
        default=_PAIRS,
        help=f"pairs of samples; default: {_PAIRS}",
    )
    parser.set_defaults(command=run)
    teach(
        parser,
        "write-a-plugin.md",
        "plugin bench",
        "plugin bench astraflow-plugin-shm",
        "plugin bench ../brevity --against numeric --json",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print each component's figures as they are known."""
    from astraflow_contrib_plugin.benching.measured import lines_of, measure
    from astraflow_contrib_plugin.checking import packaging

    if not 3 <= arguments.pairs <= _MOST_PAIRS:
        raise UserError(f"--pairs {arguments.pairs}: expected 3 to {_MOST_PAIRS}")
    if find_spec("astraflow_testing") is None:
        raise UserError(
            "astraflow-testing is not installed, which has the benchmarks: pip install astraflow-testing"
        )
    with examined(arguments) as (target, work):
        found, manifest = packaging.look_at(target, work)
        if manifest.verdict == "failed":
            raise UserError(f"{target.name}: {'; '.join(manifest.problems)}")
        entries: list[dict[str, Any]] = []
        for request in _requests(arguments, found):
            entry = {"kind": request.kind, "component": request.use}
            entry |= measure(request, work, target.site, arguments.deadline)
            entries.append(entry)
            if not arguments.json:
                print_line(f"{request.kind} {request.use}")
                for line in lines_of(entry):
                    print_line(f"  {line}")
    if arguments.json:
        named = {"name": target.name, "version": target.version}
        print_json({"distribution": named, "components": entries})
    return 1 if any("error" in entry for entry in entries) else 0


def _requests(arguments: argparse.Namespace, found: dict[str, Any]) -> Iterator[BenchRequest]:
    """One for each component that is to be measured."""
    from astraflow_contrib_plugin.benching.measured import BenchRequest

    every = [(c["kind"], c["name"]) for p in found["plugins"] for c in p["components"]]
    every += [("command", name) for p in found["plugins"] for name in p["commands"]]
    wanted = [e for e in every if arguments.component in (None, e[1])]
    if not wanted:
        raise UserError(
            f"it has no component {arguments.component!r}; it has {', '.join(name for _, name in every) or 'none'}"
        )
    keys, against_keys = (
        _table(option, getattr(arguments, option)) for option in ("keys", "against_keys")
    )
    if len(wanted) > 1 and (keys or against_keys or arguments.against):
        raise UserError(
            f"--keys and --against are for one component; name it with --component: {', '.join(n for _, n in wanted)}"
        )
    tasks, source = _tasks(arguments.tasks)
    model = str(Path(arguments.model).absolute()) if arguments.model else ""
    if model and not Path(model, "config.json").is_file():
        raise UserError(
            f"--model {arguments.model}: expected a Hugging Face folder, with config.json"
        )
    own = [name for kind, name in every if kind == "prompt_source"]
    for kind, name in wanted:
        played = source or (own[0] if kind == "environment" and len(own) == 1 and not tasks else "")
        yield BenchRequest(
            kind, name, keys, arguments.against, against_keys, arguments.pairs, played, tasks, model
        )


def _table(option: str, text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        table = tomllib.loads(f"keys = {text}")["keys"]
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"--{option.replace('_', '-')} {text}: {error}") from error
    if not isinstance(table, dict):
        raise UserError(
            f"--{option.replace('_', '-')} {text}: expected a table, such as '{{ratio = 0.5}}'"
        )
    return table


def _tasks(text: str) -> tuple[list[dict[str, Any]], str]:
    """Tasks of a file, or the name of a prompt source."""
    file = Path(text)
    if not text or not (file.suffix or "/" in text):
        return [], text
    try:
        if file.stat().st_size > _LARGEST_TASKS:
            raise UserError(f"--tasks {text}: more than {_LARGEST_TASKS >> 20} MiB")
        lines = file.read_text(encoding="utf-8").splitlines()
        tasks = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"--tasks {text}: {error}") from error
    if not tasks or not all(isinstance(task, dict) for task in tasks):
        raise UserError(
            f"--tasks {text}: expected a JSON object on each line, the data of a prompt"
        )
    return tasks, ""
