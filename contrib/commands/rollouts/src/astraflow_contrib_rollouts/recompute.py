"""``astraflow rewards recompute [RUN] --reward TABLE``: stored rollouts, scored anew."""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line, print_table
from astraflow_runtime.cli.run_directory import find_run

if TYPE_CHECKING:
    from astraflow_contrib_rollouts.rescoring import Rescored

_EXAMPLE = "rewards recompute quickstart-20260102-030405 --reward '{use = \"exact\"}'"
SHOWN = 10
"""Rollouts that are printed, those whose reward changes most."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    teach(parser, "rollouts.md", _EXAMPLE)
    subjects = parser.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    _recompute(subjects.add_parser("recompute", help="score them with another reward, and compare"))


def _recompute(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Scores the stored rollouts of a run with another reward, without new rollouts: the reward gets the stored "
        "data of the prompt and completions. The run itself is not changed."
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="path of a run directory, or its name in runs/; default: the newest in runs/",
    )
    parser.add_argument(
        "--reward",
        metavar="TABLE",
        required=True,
        help='the reward: an inline table as in TOML, \'{use = "exact", partial = "positions"}\', the name of a '
        "component, or a TOML file with a table [reward]; relative paths start from the current folder",
    )
    parser.add_argument(
        "--filter",
        metavar="EXPR",
        default="",
        help="which rollouts, as `astraflow rollouts` takes it",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="where all figures are written as JSON; default: RUN/rewards-TIME.json",
    )
    parser.add_argument("--json", action="store_true", help="print them as JSON, too")
    parser.set_defaults(command=run)
    teach(
        parser,
        "rollouts.md",
        _EXAMPLE,
        "rewards recompute --reward other.toml --filter 'outcome=trained step>50'",
    )


def run(arguments: argparse.Namespace) -> int:
    """Score, print and write; 1 if the reward failed on a rollout."""
    from astraflow_contrib_rollouts.rescoring import rescore
    from astraflow_runtime.rollouts.filters import Filter
    from astraflow_wire.host.disk import replace_file

    where = Filter.parse(arguments.filter)
    directory = find_run(arguments.run, named_by="a").absolute()
    output = arguments.output or directory / f"rewards-{time.strftime('%Y%m%d-%H%M%S')}.json"
    if not output.parent.is_dir():
        raise UserError(f"--output {output}: there is no folder {str(output.parent)!r}; make it")
    result = rescore(directory, reward_override(arguments.reward), where)
    document = result.document()
    try:
        replace_file(output, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UserError(f"--output {output}: it cannot be written: {error.strerror}") from error
    if arguments.json:
        print_json(document)
    else:
        _print(result, document)
        print_line(f"all of them: {output}")
    return 1 if result.errors else 0


def reward_override(given: str) -> str:
    """``reward={…}`` as ``--set`` of a run takes it."""
    if given.lstrip().startswith("{"):
        return f"reward={given}"
    path = Path(given)
    if not path.is_file():
        if path.suffix == ".toml":
            raise UserError(f"--reward {given}: no such file")
        return f"reward={{use = {json.dumps(given)}}}"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("reward")
    except (OSError, ValueError) as error:
        raise UserError(f"--reward {given}: it cannot be read as TOML: {error}") from error
    if not isinstance(table, dict):
        raise UserError(f"--reward {given}: the file has no table [reward]")
    return f"reward={_inline(table)}"


def _inline(value: Any) -> str:
    """A value as TOML has it in one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)} = {_inline(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, str | bool):
        return json.dumps(value)
    return repr(value)


def _print(result: Rescored, document: dict[str, Any]) -> None:
    summary = document["summary"]
    for policy, figures in summary["policies"].items():
        print_line(
            f"{policy}: {figures['rollouts']} rollouts, mean reward {figures['old_mean']:.4g} -> "
            f"{figures['new_mean']:.4g}, equal in {figures['equal']:.0%}, correlation {_advantage_text(figures['correlation'])}, "
            f"of ranks {_advantage_text(figures['rank_correlation'])}"
        )
    moved = result.most_moved(SHOWN)
    if moved:
        header = ("group", "#", "policy", "old", "new", "prompt")
        rows = [
            (each.group, each.index, policy, f"{old:.4g}", f"{new:.4g}", each.prompt_id)
            for each, policy, old, new in moved
        ]
        print_table(header, rows)
    if result.without_text:
        print_line(f"{result.without_text} rollouts have no text and were left out")
    for each in result.errors[:SHOWN]:
        print_line(f"{each.group}/{each.index}: {each.error}")
    if result.errors:
        print_line(f"{len(result.errors)} rollouts could not be scored")


def _advantage_text(value: float | None) -> str:
    return "none (all rewards are equal)" if value is None else f"{value:.3f}"
