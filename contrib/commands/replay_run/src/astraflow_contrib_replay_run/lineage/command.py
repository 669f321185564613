"""``astraflow lineage``: what made an update, a version or a row, and what a prompt changed."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line
from astraflow_runtime.cli.run_directory import find_run

if TYPE_CHECKING:
    from astraflow_contrib_replay_run.lineage.index import LineageIndex, Row
    from astraflow_contrib_replay_run.lineage.reports import LineageReports

SUBJECTS = ("step", "version", "row", "group", "prompt")
_SUGGESTED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Reads the journal of a run, live or ended. Of a step and a version it shows which prompts, RaaS, versions and "
        "plugins made it; of a row, a group and a prompt, which updates and versions they went into."
    )
    parser.add_argument("run", metavar="RUN", help="path of a run directory, or its name in runs/")
    parser.add_argument("subject", choices=SUBJECTS, help="kind of the ID")
    parser.add_argument(
        "id",
        metavar="ID",
        help="number of the update (from 1) or of the version; POLICY:NUMBER of a row; name of a group or a prompt",
    )
    parser.add_argument(
        "--policy", metavar="NAME", help="its policy; needed if the run has several"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)
    teach(
        parser,
        "replay.md",
        "lineage quickstart-20260102-030405 step 12",
        "lineage quickstart-20260102-030405 version 3 --json",
        "lineage quickstart-20260102-030405 row solver:512",
        "lineage quickstart-20260102-030405 prompt train/17",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read and report."""
    from astraflow_contrib_replay_run.lineage.index import LineageIndex
    from astraflow_contrib_replay_run.lineage.reports import LineageReports
    from astraflow_runtime.dataflow.journal_reader import JournalReader

    directory = find_run(arguments.run, named_by="a")
    reader, index = JournalReader.of_run(directory), LineageIndex()
    reader.feed(index)
    reports = LineageReports(directory, reader, index)
    found, lines = _answer(arguments, index, reports)
    if arguments.json:
        print_json({"run": str(directory), arguments.subject: arguments.id, **found})
    else:
        for line in lines:
            print_line(line)
    return 0


def _answer(
    arguments: argparse.Namespace, index: LineageIndex, reports: LineageReports
) -> tuple[dict[str, Any], Iterable[str]]:
    from astraflow_contrib_replay_run.lineage import text

    subject, name = arguments.subject, arguments.id
    if subject == "step":
        policy = _policy(arguments, index)
        key = (policy, _number(name, subject))
        update = index.updates.get(key) or _unknown(
            subject, name, [step for of, step in index.updates if of == policy]
        )
        step = reports.step(update)
        return step, text.told_step(step)
    if subject == "version":
        policy = _policy(arguments, index)
        number = _number(name, subject)
        if (policy, number) not in index.versions:
            _unknown(subject, name, [v for of, v in index.versions if of == policy])
        version = reports.version(policy, number)
        return version, text.told_version(version)
    if subject == "row":
        row = _row(arguments, index)
        task, _ = index.of_row[row]
        return _about_rows(reports, index, [task], [row], one=row)
    tasks = index.admitted.get(name, []) if subject == "prompt" else [name]
    known = index.admitted if subject == "prompt" else index.groups
    if not (set(tasks) & index.groups.keys()) and name not in known and name not in index.refused:
        _unknown(subject, name, list(known))
    rows = [row for task in tasks for row in index.rows_of(task)]
    refused = index.refused.get(name, []) if subject == "prompt" else []
    return _about_rows(reports, index, tasks, rows, refused=refused)


def _about_rows(
    reports: LineageReports,
    index: LineageIndex,
    tasks: list[str],
    rows: list[Row],
    one: Row | None = None,
    refused: Iterable[tuple[float, str, str]] = (),
) -> tuple[dict[str, Any], Iterable[str]]:
    from astraflow_contrib_replay_run.lineage import text

    groups = []
    for task in tasks:
        if task in index.groups:
            own = [row for row in rows if index.of_row[row][0] == task]
            group = reports.group(task, index.groups[task])
            groups.append({**group, "rows": [reports.row(row) for row in own]})
    uses = reports.subject(rows)
    found: dict[str, Any] = {"groups": groups, "trained_in": uses}
    lines: list[str] = []
    if one is not None:
        lines += text.told_row(reports.row(one))
    if refused := list(refused):
        found["refused"] = [{"at_s": at, "by": by, "reason": why} for at, by, why in refused]
        lines += [f"offered at {at:.2f} s; refused by {by}: {why}" for at, by, why in refused]
    for group in groups:
        lines += text.told_group(group)
    pending = len(tasks) - len(groups)
    if pending:
        lines.append(f"  {pending} of its groups have brought no result")
    return found, [*lines, "what changed with it:", *text.told_uses(uses)]


def _policy(arguments: argparse.Namespace, index: LineageIndex) -> str:
    known = sorted({policy for policy, _ in index.versions})
    if arguments.policy is None and len(known) == 1:
        return known[0]
    if arguments.policy in known:
        return str(arguments.policy)
    if not known:
        raise UserError("the run has published no version yet")
    given = f"--policy {arguments.policy!r}: " if arguments.policy else ""
    raise UserError(f"{given}name one of {', '.join(known)} with --policy")


def _number(text: str, subject: str) -> int:
    if not text.isdecimal():
        raise UserError(f"{subject} {text!r} is not a number; write {subject} 12")
    return int(text)


def _row(arguments: argparse.Namespace, index: LineageIndex) -> Row:
    policy, _, number = arguments.id.rpartition(":")
    policy = policy or _policy(arguments, index)
    if not number.isdecimal():
        raise UserError(f"row {arguments.id!r}: write POLICY:NUMBER, such as {policy}:512")
    row = (policy, int(number))
    if row not in index.of_row:
        _unknown("row", arguments.id, [f"{of}:{arrival}" for of, arrival in index.of_row])
    return row


def _unknown(subject: str, name: str, known: Iterable[object]) -> Any:
    from difflib import get_close_matches

    names = [str(each) for each in known]
    near = get_close_matches(name, names, _SUGGESTED) or [*names[:2], *names[-1:]]
    hint = f"it has {len(names)}, such as {', '.join(near)}" if names else "it has none yet"
    raise UserError(f"the journal of the run has no {subject} {name!r}; {hint}")
