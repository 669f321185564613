"""How rollouts are shown: tables and texts for people, JSON for programs."""

from __future__ import annotations

import difflib
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from astraflow_runtime.cli.output import print_line
from astraflow_runtime.rollouts.reader import (
    LoadedGroup,
    LoadedTrajectory,
    RolloutEntry,
    TrainedSequence,
)
from astraflow_runtime.rollouts.records import StoredSequence, StoredTurn
from astraflow_runtime.telemetry.printable import all_printable, printable

WIDTH = 160
"""Columns where the output is no terminal."""
_HEADER = ("group", "#", "step", "outcome", "reward", "tokens", "turns", "version", "prompt", "")
_SHRINKS = {"prompt", ""}
_RIGHT = {"#", "step", "reward", "tokens", "turns", "version"}


# -- lists ---------------------------------------------------------------------------------------


def print_entries(entries: Iterable[RolloutEntry]) -> None:
    """A table with a line for each."""
    _print_table(_HEADER, map(_cells, entries))


def as_line(entry: RolloutEntry) -> str:
    """One line, for a list that grows."""
    at = time.strftime("%H:%M:%S", time.localtime(entry.time_s))
    group, index, step, outcome, reward, tokens, turns, versions, prompt, rest = _cells(entry)
    name = f"{group}/{index}" if index else group
    facts = f"reward {reward}, {tokens} tokens, {turns} turns, version {versions}"
    told = facts if entry.outcome != "failed" else ""
    trained = f" (step {step})" if step else ""
    return "  ".join(filter(None, [at, name, f"{outcome}{trained}", told, prompt, rest]))


def print_json_line(entry: RolloutEntry) -> None:
    """Print one line of JSON and flush it."""
    print(json.dumps(entry_as_json(entry)), flush=True)


def entry_as_json(entry: RolloutEntry) -> dict[str, Any]:
    """An entry, with its reward and step."""
    return {**asdict(entry), "reward": entry.reward, "step": entry.step}


def _cells(entry: RolloutEntry) -> tuple[str, ...]:
    steps = ",".join(dict.fromkeys(str(step) for _, step in entry.updates))
    rest = [f"calls {', '.join(entry.tools)}"] if entry.tools else []
    if entry.reason:
        rest.append(entry.reason)
    if entry.outcome == "failed":
        kind = [entry.environment] if entry.environment else []
        return (
            entry.group, "", "", "failed", "", "", "", "", entry.prompt_id, ": ".join([*kind, *rest]),
        )  # fmt: skip
    several = len(entry.rewards) > 1
    rewards = " ".join(
        f"{policy} {reward:.4g}" if several else f"{reward:.4g}"
        for policy, reward in entry.rewards.items()
    )
    return (
        entry.group,
        str(entry.index),
        steps,
        entry.outcome,
        rewards,
        f"{entry.tokens}{' cut off' if entry.truncated else ''}",
        str(entry.turns or ""),
        _span(entry.versions),
        entry.prompt_id,
        "; ".join(rest),
    )


def _span(versions: tuple[int, int]) -> str:
    low, high = versions
    return "" if high < 0 else str(low) if low == high else f"{low}-{high}"


def _print_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    # A Text is not read as markup.
    cells = [[Text(printable(cell).replace("\n", " ")) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, name in enumerate(header):
        widest = max((row[column].cell_len for row in cells), default=0)
        table.add_column(
            name,
            justify="right" if name in _RIGHT else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if name in _SHRINKS else widest,
        )
    for row in cells:
        table.add_row(*row)
    _console().print(table)


def _console() -> Console:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


# -- one -----------------------------------------------------------------------------------------


def print_group(group: LoadedGroup) -> None:
    """Its prompt, the verdicts, and a line for each trajectory."""
    record = group.record
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time_s))
    print_line(f"group {record.group} of prompt {record.prompt_id}, from {record.raas} at {at}")
    for line in _json_lines(record.prompt_data):
        print_line(f"  {line}")
    for verdict in record.verdicts:
        by = f"data policy {verdict.by!r}" if verdict.by else "the dataflow"
        kept = f"kept, {verdict.kept} sequences"
        said = f"rejected by {by}: {verdict.reason}" if verdict.reason else kept
        print_line(f"{verdict.policy}: {said}")
        for shadow, reason in verdict.shadow_rejections:
            print_line(f"  shadow {shadow!r} would have rejected it: {reason}")
    if record.rejected or record.late:
        print_line(
            f"{record.rejected} more episodes were rejected by the workflow, {record.late} cut off by the group deadline"
        )
    print_entries(each.entry for each in group.trajectories)


def print_trajectory(group: LoadedGroup, trajectory: LoadedTrajectory, *, tokens: bool) -> None:
    """Its figures and its texts; with ``tokens`` also a table of each sequence."""
    entry, stored = trajectory.entry, trajectory.stored
    print_line(
        f"trajectory {entry.index} of group {entry.group}, prompt {entry.prompt_id}: {entry.outcome}"
    )
    print_line(f"rewards: {_figures(stored.rewards)}")
    if stored.metrics:
        print_line(f"metrics: {_figures(stored.metrics)}")
    for sequence, uses in zip(stored.sequences, trajectory.trained, strict=True):
        for use in uses:
            print_line(f"{sequence.policy}: {_use(use)}")
    print_line()
    for turn in stored.turns or ():
        print_line(f"--- {turn.role} ({turn.policy}, {turn.end - turn.start} tokens)")
        print_line(turn.text)
    if stored.turns is None:
        print_line("its RaaS sent no text")
    for completion in stored.completions or ():
        if all(completion.text != turn.text for turn in stored.turns or ()):
            print_line(f"--- completion ({completion.policy}, {completion.finish_reason})")
            print_line(completion.text)
    if tokens:
        for index, sequence in enumerate(stored.sequences):
            print_line()
            print_line(f"sequence {index} of {sequence.policy}")
            uses = trajectory.trained[index]
            _print_table(
                ("token", "id", "version", "trained", "engine", "trainer", "advantage"),
                _token_rows(sequence, uses[-1] if uses else None),
            )


def _use(use: TrainedSequence) -> str:
    advantages = use.row.advantages[use.row.advantages != 0]
    mean = f", mean advantage {advantages.mean():.4g}" if advantages.size else ", advantage 0"
    return f"step {use.step} of {use.policy} (batch {use.batch}, version {use.version}){mean}"


def _token_rows(sequence: StoredSequence, use: TrainedSequence | None) -> Iterator[tuple[str, ...]]:
    trainer = None if use is None else use.row.trainer_logprobs
    for place, token in enumerate(sequence.tokens.tolist()):
        sampled = sequence.versions[place] >= 0
        yield (
            str(place),
            str(token),
            str(sequence.versions[place]) if sampled else "",
            "yes" if sequence.loss_mask[place] else "",
            f"{sequence.logprobs[place]:.4f}" if sampled else "",
            f"{trainer[place]:.4f}" if trainer is not None and sampled else "",
            f"{use.row.advantages[place]:.4f}" if use and sequence.loss_mask[place] else "",
        )


def print_difference(group: LoadedGroup, best: LoadedTrajectory, worst: LoadedTrajectory) -> None:
    """What the worse of two trajectories has and the better lacks, and vice versa."""
    print_line(f"group {group.record.group}, prompt {group.record.prompt_id}")
    names = [
        f"{name}: trajectory {each.entry.index}, rewards {_figures(each.stored.rewards)}"
        for name, each in (("worst", worst), ("best", best))
    ]
    before, after = (list(_lines(each.stored.turns or ())) for each in (worst, best))
    lines = list(difflib.unified_diff(before, after, names[0], names[1], n=2, lineterm=""))
    console = _console()
    styles = {"-": "red", "+": "green", "@": "cyan"}
    for line in lines or [*names, "their texts are equal"]:
        console.print(Text(printable(line), style=styles.get(line[:1], "")), soft_wrap=True)


def _lines(turns: Iterable[StoredTurn]) -> Iterator[str]:
    for turn in turns:
        yield f"[{turn.role}, {turn.policy}]"
        yield from turn.text.splitlines() or [""]


def _figures(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def _json_lines(value: Any) -> list[str]:
    return json.dumps(all_printable(value), ensure_ascii=False, indent=1).splitlines()


# -- JSON ----------------------------------------------------------------------------------------


def group_as_json(group: LoadedGroup) -> dict[str, Any]:
    """A group with arrays as lists."""
    record = group.record
    return {
        "group": record.group,
        "number": record.number,
        "time_s": record.time_s,
        "raas": record.raas,
        "prompt_id": record.prompt_id,
        "prompt_data": record.prompt_data,
        "accepted": record.accepted,
        "verdicts": [_struct(verdict) for verdict in record.verdicts],
        "newest": record.newest,
        "rejected": record.rejected,
        "late": record.late,
        "trajectories": [as_json(each) for each in group.trajectories],
    }


def as_json(trajectory: LoadedTrajectory) -> dict[str, Any]:
    """A trajectory with arrays as lists, and for each sequence the updates with it."""
    stored = trajectory.stored
    return {
        **entry_as_json(trajectory.entry),
        "metrics": stored.metrics,
        "turns": None if stored.turns is None else [_struct(turn) for turn in stored.turns],
        "completions": (
            None if stored.completions is None else [_struct(each) for each in stored.completions]
        ),
        "sequences": [
            {**_struct(sequence), "updates": [_update(use) for use in uses]}
            for sequence, uses in zip(stored.sequences, trajectory.trained, strict=True)
        ],
    }


def _update(use: TrainedSequence) -> dict[str, Any]:
    named = {"policy": use.policy, "batch": use.batch, "step": use.step, "version": use.version}
    return {**named, **_struct(use.row)}


def _struct(value: Any) -> dict[str, Any]:
    """The fields of a stored struct; raw bytes as the list of the array that they are."""
    found = {}
    for name in value.__struct_fields__:
        public = name.removeprefix("raw_")
        field = getattr(value, public)
        found[public] = field.tolist() if isinstance(field, np.ndarray) else field
    return found
