"""``astraflow weights ls | verify | diff | pull``: look at the published versions of a run, and fetch them."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line, print_table
from astraflow_runtime.cli.run_directory import add_run, find_run

if TYPE_CHECKING:
    from astraflow_runtime.cli.running.weights_of import WeightsOf

_SUBJECTS = {
    "ls": "list the announced versions and whether they can still be fetched",
    "verify": "fetch a version and verify every block, or compare files on this host with its digest",
    "diff": "show the share of weights that changed between two versions, by layer, and the size of a change",
    "pull": "fetch a version into a new Hugging Face folder",
}

_EXAMPLES = {
    "ls": "weights ls --run quickstart-20260102-030405",
    "verify": "weights verify 40 models/solver",
    "diff": "weights diff 39 40 --policy solver",
    "pull": "weights pull 40 solver-40",
}
_FETCHABLE = {True: "yes", None: "unknown: pull it to find out", False: ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    teach(parser, "weights.md", _EXAMPLES["ls"], _EXAMPLES["pull"])
    subjects = parser.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    for subject, text in _SUBJECTS.items():
        each = subjects.add_parser(subject, help=text)
        if subject == "diff":
            for name in ("before", "after"):
                each.add_argument(
                    name,
                    metavar=name.upper(),
                    help="a version, or a safetensors file or Hugging Face folder",
                )
        elif subject != "ls":
            each.add_argument("version", metavar="VERSION", type=int, help="number of the version")
        if subject == "verify":
            each.add_argument(
                "path",
                metavar="PATH",
                type=Path,
                nargs="?",
                help="a safetensors file or Hugging Face folder; default: fetch the version",
            )
        if subject == "pull":
            each.add_argument(
                "folder", metavar="FOLDER", type=Path, help="folder to create; must not exist"
            )
        add_run(each)
        each.add_argument("--policy", metavar="NAME", help="default: the run's only policy")
        if subject != "ls":
            each.add_argument(
                "--deadline",
                metavar="SECONDS",
                type=_positive,
                default=600.0,
                help="maximum time to fetch one version (default: 600)",
            )
        each.add_argument("--json", action="store_true", help="print JSON")
        each.set_defaults(command=run, subject=subject)
        teach(each, "weights.md", _EXAMPLES[subject])


def run(arguments: argparse.Namespace) -> int:
    """Do it; errors of use exit with 2, weights that are wrong or unavailable with 1."""
    from astraflow_runtime.cli.running.weights_of import WeightsOf

    directory = find_run(arguments.run)
    with tempfile.TemporaryDirectory(prefix="astraflow-weights-") as scratch:
        weights = WeightsOf(
            directory, arguments.policy, Path(scratch), getattr(arguments, "deadline", 0.0)
        )
        with weights:
            act = {"ls": _list, "verify": _verify, "diff": _difference, "pull": _pull}
            return act[arguments.subject](arguments, weights)


def _list(arguments: argparse.Namespace, weights: WeightsOf) -> int:
    versions = weights.listed()
    if arguments.json:
        print_json({"run": str(weights.run), "policy": weights.policy, "versions": versions})
        return 0
    print_line(f"policy {weights.policy}, transport {weights.transport}")
    print_table(
        ("version", "MB", "derives from", "kind", "digest", "fetchable"),
        (
            (
                v["version"],
                f"{v['bytes'] / 1e6:.1f}",
                "-" if v["derives_from"] is None else v["derives_from"],
                v["kind"] or "-",
                v["digest"],
                _FETCHABLE[v["fetchable"]] or f"no: {v['problem']}",
            )
            for v in versions
        ),
    )
    return 0


def _verify(arguments: argparse.Namespace, weights: WeightsOf) -> int:
    facts = weights.verify(arguments.version, arguments.path)
    if arguments.json:
        print_json(facts)
    elif facts["verified"]:
        print_line(f"{facts['what']}: {facts['digest']}, as announced")
    else:
        print_line(
            f"{facts['what']} is not version {arguments.version} of policy {weights.policy!r}: its "
            f"digest is {facts['found']}, expected {facts['digest']}"
        )
    return 0 if facts["verified"] else 1


def _difference(arguments: argparse.Namespace, weights: WeightsOf) -> int:
    from astraflow_weights.difference import Difference, differences

    layers = differences(weights.files(arguments.before), weights.files(arguments.after))
    total = Difference()
    for each in layers.values():
        total.add(each)
    rows = {**layers, "all": total}
    if arguments.json:
        print_json(
            {
                name: {
                    "elements": each.elements,
                    "changed": each.changed,
                    "density": each.density,
                    "bound_bytes_per_changed": each.bytes_per_changed,
                }
                for name, each in rows.items()
            }
        )
        return 0
    print_table(
        ("layer", "weights", "changed", "density", "bytes per change, bound"),
        (
            (
                name,
                each.elements,
                each.changed,
                f"{each.density:.3%}",
                f"{each.bytes_per_changed:.2f}",
            )
            for name, each in rows.items()
        ),
    )
    return 0


def _pull(arguments: argparse.Namespace, weights: WeightsOf) -> int:
    facts = weights.pull(arguments.version, arguments.folder)
    if arguments.json:
        print_json(facts)
    else:
        print_line(
            f"version {arguments.version} of policy {weights.policy!r} is in {arguments.folder}"
        )
    return 0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e7:
        raise argparse.ArgumentTypeError(f"{text}: expected seconds above 0")
    return value
