"""``astraflow rollouts [RUN]``: what a run rolled out, and what happened to it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line
from astraflow_runtime.cli.run_directory import find_run
from astraflow_runtime.telemetry.progress import progress

if TYPE_CHECKING:
    from astraflow_runtime.rollouts.filters import Filter
    from astraflow_runtime.rollouts.reader import LoadedGroup, RolloutReader
    from astraflow_runtime.rollouts.texts import RolloutSearch

SHOWN = 30
"""Rollouts in a list, the newest ones."""
_LOOK_S = 0.5
"""Seconds for which texts are read until the progress is shown again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Reads the rollouts that a run stores, while it runs or afterwards. Texts of models and environments are "
        "printed with their control characters made visible."
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="path of a run directory, or its name in runs/; default: the newest in runs/",
    )
    which = parser.add_argument_group("which rollouts")
    which.add_argument(
        "--filter",
        metavar="EXPR",
        default="",
        help="terms that all hold, such as 'step>=10 reward<0.5 text~sorry'; keys: step, policy, reward, length, "
        "sampled, turns, version, outcome, tool, error, prompt, group, raas, text",
    )
    which.add_argument(
        "--limit",
        metavar="N",
        type=_count,
        default=SHOWN,
        help=f"the newest N of them; default: {SHOWN}",
    )
    which.add_argument("--follow", action="store_true", help="print new ones until the run ends")
    which.add_argument(
        "--group", metavar="ID", help="one group, by the name of its task, such as train-12"
    )
    which.add_argument(
        "--trajectory",
        metavar="N",
        type=_index,
        help="a trajectory of that group, counted from 0, with its texts",
    )
    how = parser.add_argument_group("how they are shown")
    how.add_argument(
        "--tokens",
        action="store_true",
        help="with each token of the trajectory: log-probs, advantage",
    )
    how.add_argument(
        "--best-worst",
        action="store_true",
        help="compare the best and the worst trajectory of the group; without --group: of the newest with a difference",
    )
    how.add_argument(
        "--json", action="store_true", help="print JSON: a line for each rollout, or a whole group"
    )
    parser.set_defaults(command=run)
    teach(
        parser,
        "rollouts.md",
        "rollouts quickstart-20260102-030405 --filter 'reward<0.5 outcome=trained'",
        "rollouts --group train-12 --trajectory 0 --tokens",
        "rollouts --best-worst",
        "rollouts --follow --filter outcome=failed",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for; 1 if nothing fits the filter."""
    from astraflow_contrib_rollouts import viewing
    from astraflow_runtime.rollouts.filters import Filter
    from astraflow_runtime.rollouts.reader import RolloutReader

    _check(arguments)
    where = Filter.parse(arguments.filter)
    directory = find_run(arguments.run, named_by="a")
    reader = RolloutReader(directory)
    if arguments.follow:
        return _follow(reader, where, directory, arguments.json)
    if arguments.group is None and not arguments.best_worst:
        return _list(reader, where, arguments)
    group = reader.group(arguments.group) if arguments.group else _most_apart(reader, where)
    if arguments.best_worst:
        best, worst = group.best_and_worst()
        if arguments.json:
            print_json({"best": viewing.as_json(best), "worst": viewing.as_json(worst)})
        else:
            viewing.print_difference(group, best, worst)
    elif arguments.trajectory is None:
        if arguments.json:
            print_json(viewing.group_as_json(group))
        else:
            viewing.print_group(group)
    else:
        found = group.trajectories
        if arguments.trajectory >= len(found):
            raise UserError(
                f"--trajectory {arguments.trajectory}: group {group.record.group} has {len(found)}, counted from 0"
            )
        chosen = found[arguments.trajectory]
        if arguments.json:
            print_json(viewing.as_json(chosen))
        else:
            viewing.print_trajectory(group, chosen, tokens=arguments.tokens)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.trajectory is not None and arguments.group is None:
        raise UserError("--trajectory: give --group ID too, whose trajectory it is")
    if arguments.tokens and arguments.trajectory is None:
        raise UserError("--tokens: give --group ID and --trajectory N too, whose tokens they are")
    if arguments.best_worst and arguments.trajectory is not None:
        raise UserError("--best-worst compares two trajectories; leave out --trajectory")
    if arguments.follow and (arguments.group or arguments.best_worst):
        raise UserError("--follow prints a list; leave out --group and --best-worst")


def _list(reader: RolloutReader, where: Filter, arguments: argparse.Namespace) -> int:
    from astraflow_contrib_rollouts import viewing

    search = _searched(reader, where)
    found = search.entries[: arguments.limit]
    more = len(search.entries) - len(found)
    found.sort(key=lambda entry: (entry.time_s, entry.number, entry.index))
    if arguments.json:
        for entry in found:
            viewing.print_json_line(entry)
        if search.damaged:
            print_line(f"{len(found)} rollouts{_damaged(search)}", sys.stderr)
        return 0 if found else 1
    if found:
        viewing.print_entries(found)
    shown = f"{len(found)} of {len(found) + more} rollouts" if more else f"{len(found)} rollouts"
    print_line(f"{shown} of {len(reader)} in {reader.directory}{_damaged(search)}{_lost(reader)}")
    return 0 if found else 1


def _searched(reader: RolloutReader, where: Filter) -> RolloutSearch:
    """All that fit, the newest first; it says how far it is where texts must be read for that."""
    total = unread = len(reader)
    with progress("search", lambda: f"{total - unread} of {total} rollouts"):
        while True:
            found = reader.search(where, most=total, for_s=_LOOK_S)
            unread = found.unread
            if not unread:
                return found


def _damaged(search: RolloutSearch) -> str:
    count = search.damaged
    return f"; {count} could not be searched: their records are damaged" if count else ""


def _lost(reader: RolloutReader) -> str:
    return f"; {reader.dropped} records were not written: see the logs" if reader.dropped else ""


def _follow(reader: RolloutReader, where: Filter, directory: Path, as_json: bool) -> int:
    """Follow the rollouts until the run has ended, or Ctrl-C."""
    from astraflow_contrib_rollouts import viewing

    def ended() -> bool:
        return (directory / "summary.json").exists()

    if ended():
        sys.stderr.write("the run has ended: there is nothing to wait for\n")
    try:
        for entry in reader.follow(where, ended=ended):
            if as_json:
                viewing.print_json_line(entry)
            else:
                print_line(viewing.as_line(entry))
    except KeyboardInterrupt:
        return 130
    return 0


def _most_apart(reader: RolloutReader, where: Filter) -> LoadedGroup:
    """The newest group of which two rollouts that fit have different rewards."""
    rewards: dict[int, set[float]] = {}
    for entry in reader.entries(where, newest_first=True):
        if entry.reward is not None:
            seen = rewards.setdefault(entry.number, set())
            seen.add(entry.reward)
            if len(seen) > 1:
                return reader.group(entry.number)
    raise UserError(
        f"no group in {reader.folder} has two rollouts with different rewards that fit the filter; name one with --group ID"
    )


def _count(text: str) -> int:
    return _index(text, 1)


def _index(text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least {least}")
    return int(text)
