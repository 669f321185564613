"""``astraflow trace prompt | group``: the history of one of them, from the journal of a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line
from astraflow_runtime.cli.run_directory import add_run, find_run, read_config

if TYPE_CHECKING:
    from astraflow_runtime.dataflow.journal.entries import Entry
    from astraflow_runtime.dataflow.journal.lineage import (
        Attempt,
        GroupLineage,
        Offered,
        PolicyOutcome,
        RowLineage,
    )
    from astraflow_runtime.dataflow.journal.tracing import Trace
    from astraflow_runtime.dataflow.journal_reader import JournalReader

_SUGGESTED = 3
_EXAMPLES = {
    "prompt": "trace prompt train/17",
    "group": "trace group train-12 --run quickstart-20260102-030405",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Reads the journal of a run, live or ended. What a key of the configuration means is explained by `astraflow "
        "config explain`."
    )
    teach(parser, "overview.md", *_EXAMPLES.values())
    subjects = parser.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    for subject, text in (
        (
            "prompt",
            "show each offer of a prompt: which data policy refused it and why, or its group",
        ),
        ("group", "show the path of a group: where it ran, its verdicts and its batches"),
    ):
        each = subjects.add_parser(subject, help=text)
        what = "of the prompt" if subject == "prompt" else "of the group's task, such as train-12"
        each.add_argument("id", metavar="ID", help=f"name {what}")
        add_run(each)
        each.add_argument("--json", action="store_true", help="print JSON")
        each.set_defaults(command=run, subject=subject)
        teach(each, "overview.md", _EXAMPLES[subject])


def run(arguments: argparse.Namespace) -> int:
    """Read the journal and print the history; exit code 2 if the subject is unknown."""
    directory = find_run(arguments.run)
    name, subject = arguments.id, arguments.subject
    trace = read_trace(directory, subject, name)
    if arguments.json:
        print_json(trace_table(trace, directory, subject, name))
        return 0
    print_line(f"{subject} {name} in {directory} (seconds since its dataflow began)")
    for line in _trace_lines(trace):
        print_line(line)
    return 0


def read_trace(directory: Path, subject: str, name: str) -> Trace:
    """What the journal of a run records about a ``"prompt"`` or a ``"group"``; :class:`UserError` with similar names
    if it has none of that name."""
    from astraflow_runtime.dataflow.journal.tracing import Trace
    from astraflow_runtime.dataflow.journal_reader import JournalReader

    trace = Trace(_task_attempts(directory), **{subject: name})
    reader = JournalReader.of_run(directory)
    reader.feed(trace)
    if not (trace.offers or trace.groups):
        near = _like(reader, subject, name)
        raise UserError(f"no {subject} {name!r} was found in {directory}{near}")
    return trace


def trace_table(trace: Trace, directory: Path, subject: str, name: str) -> dict[str, Any]:
    """A trace as JSON has it."""
    return {
        subject: name,
        "run": str(directory),
        "offers": [asdict(offer) for offer in trace.offers],
        "groups": [asdict(story) for story in trace.groups.values()],
    }


def _task_attempts(directory: Path) -> int:
    from astraflow_core.config.models import RunTable

    config = read_config(directory)
    default: int = RunTable.model_fields["task_attempts"].default
    attempts: int = config.get("run", {}).get("task_attempts", default)
    return attempts


class _Names:
    """Listens for the names of all groups, or of all prompts."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._names: dict[str, None] = {}

    def on_entry(self, at_s: float, entry: Entry) -> None:
        from astraflow_runtime.dataflow.journal.entries import PromptsConsumed, Pushed

        if self._subject == "group":
            task = entry.task if isinstance(entry, PromptsConsumed) else ""
            self._names[entry.header.task if isinstance(entry, Pushed) else task] = None
        elif isinstance(entry, PromptsConsumed):
            self._names[entry.prompt] = None
            self._names |= dict.fromkeys(n for turned in entry.turned for n in turned.prompts)

    @property
    def known(self) -> list[str]:
        return [name for name in self._names if name]


def _like(reader: JournalReader, subject: str, name: str) -> str:
    from difflib import get_close_matches

    names = _Names(subject)
    reader.feed(names)
    known = names.known
    near = get_close_matches(name, known, _SUGGESTED) or known[:_SUGGESTED]
    return (
        f"; it knows {len(known)}, such as {', '.join(near)}" if near else "; its journal has none"
    )


# -- for people ----------------------------------------------------------------------------------


def _trace_lines(trace: Trace) -> Iterator[str]:
    told = set()
    for offer in trace.offers:
        yield from _offer(offer)
        if offer.group:
            told.add(offer.group)
            yield from _group(trace.groups[offer.group])
    for name, story in trace.groups.items():
        if name not in told:
            of = f" of evaluation set {story.eval_set!r}" if story.eval_set else ""
            of += f", the rest of group {story.completes}" if story.completes else ""
            yield f"{'':>12}group {name}, prompt {story.prompt or 'unknown'}{of}"
            yield from _group(story)


def _line(at: float, text: str) -> str:
    return f"{at:10.2f}  {text}"


def _offer(offer: Offered) -> Iterator[str]:
    if not offer.admitted:
        yield _line(offer.at_s, f"offered; refused by {offer.by!r}: {offer.reason}")
    else:
        how = " (forced, because the data policies refused a whole epoch)" if offer.forced else ""
        yield _line(offer.at_s, f"offered; admitted as group {offer.group}{how}")
    for doubt in offer.shadow_rejections:
        yield f"{'':>12}shadow {doubt.shadow!r} would have refused: {doubt.reason}"


def _attempt(attempt: Attempt) -> Iterator[tuple[float, str]]:
    raas = f"{attempt.raas}, as the second," if attempt.second else attempt.raas
    if attempt.until_s is None:
        yield attempt.since_s, f"running on {raas.rstrip(',')}; no result yet"
    elif attempt.ended == "pushed":
        took = attempt.until_s - attempt.since_s
        yield attempt.since_s, f"{raas} rolls it out, {took:.2f} s"
    else:
        yield attempt.since_s, f"{raas} has it"
        yield attempt.until_s, f"ended without a result: {attempt.ended}"


def _group(story: GroupLineage) -> Iterator[str]:
    events = [event for attempt in story.attempts for event in _attempt(attempt)]
    for at_s, text in sorted(events, key=lambda event: event[0]):  # two may have had it at a time
        yield _line(at_s, text)
    if story.pushed_s is not None:
        yield _line(story.pushed_s, _result(story))
    elif story.state != "leased":
        yield f"{'':>12}{story.state.replace('_', ' ')}"
    for share in story.shares:
        yield from _share(share)


def _result(story: GroupLineage) -> str:
    text = f"{story.state}: {story.trajectories} trajectories"
    if story.rejected_by_workflow:
        text += f", {story.rejected_by_workflow} more rejected by the workflow"
    if story.late:
        text += f", {story.late} cut off by the group deadline"
    return text + (f"; group {story.completed_by} brings the rest" if story.completed_by else "")


def _share(share: PolicyOutcome) -> Iterator[str]:
    rewards, versions = share.rewards, sorted({v for v in share.min_versions if v >= 0})
    shown = f"{rewards[0]:g}" if len(set(rewards)) == 1 else f"{min(rewards):g} to {max(rewards):g}"
    sampled = ", ".join(map(str, versions)) or "none"
    facts = (
        f"{len(rewards)} sequences, rewards {shown}, sampled from version {sampled}, "
        f"newest {share.newest}"
    )
    if share.accepted:
        yield f"{'':>12}{share.policy}: kept ({facts})"
    else:
        by = f"data policy {share.by!r}" if share.by else "the dataflow"
        yield f"{'':>12}{share.policy}: rejected by {by}: {share.reason} ({facts})"
    for doubt in share.shadow_rejections:
        yield f"{'':>14}shadow {doubt.shadow!r} would have rejected it: {doubt.reason}"
    if share.stale:
        yield f"{'':>14}{share.stale} sequences were already too stale"
    if share.untrained:
        yield f"{'':>14}{share.untrained} sequences have no tokens to train"
    for row in share.rows:
        yield f"{'':>14}{_row(row)}"


def _row(row: RowLineage) -> str:
    uses = []
    for use in row.batches:
        end = "served" if use.trained_s is None else f"trained {use.trained_s:.2f} s"
        staleness = use.updates - row.min_version
        uses.append(f"{use.batch} ({end}, staleness {staleness})")
    for use in row.lent:
        end = "lent" if use.trained_s is None else f"trained {use.trained_s:.2f} s"
        uses.append(f"borrowed by {use.batch} ({end})")
    state = "" if row.state in ("trained", "being_trained") else row.state
    return (
        f"row {row.arrival}, reward {row.reward:g}: {', '.join([*uses, state] if state else uses)}"
    )
