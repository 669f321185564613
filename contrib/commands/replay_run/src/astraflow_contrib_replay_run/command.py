"""``astraflow replay``: train on the recorded batches of a run again, without any engine."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import RunFailed, UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line, print_table
from astraflow_runtime.cli.run_directory import find_run

if TYPE_CHECKING:
    from astraflow_contrib_replay_run.batches import RecordedBatches
    from astraflow_contrib_replay_run.recorded_run import RecordedRun
    from astraflow_contrib_replay_run.service import ReplayedStep, ReplayService

FILE = "replay.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Serves the recorded batches of a run to its trainers again, in the recorded order and byte for byte. No engine "
        "runs. Without changes, and with the same number of threads, the weights are the run's, bit for bit. "
        "The run itself is not changed: models, metrics and replay.json go to the directory of the replay."
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="path of a run directory, or its name in runs/; default: the newest in runs/",
    )
    parser.add_argument(
        "--until", metavar="STEP", type=_count, help="stop after this update, counted from 1"
    )
    parser.add_argument(
        "--policy",
        metavar="NAME",
        action="append",
        default=[],
        help="train this policy only; may be repeated; default: all",
    )
    changes = parser.add_argument_group("what is to be otherwise than in the run")
    changes.add_argument(
        "--trainer",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a key of the trainer, such as lr=1e-5; use=NAME names another one; may be repeated",
    )
    changes.add_argument(
        "--algorithm",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a key of the algorithm, such as clip_high=0.3; use=NAME names another one; may be repeated",
    )
    changes.add_argument(
        "--data",
        metavar="POLICIES",
        help="other data policies: dynamic_sampling,staleness or a TOML array of tables; the recorded groups are "
        "judged and batched anew",
    )
    parser.add_argument(
        "--step",
        metavar="STEP",
        type=_count,
        nargs="?",
        const=1,
        help="run the trainer in this process and stop in pdb before this update (default: the first)",
    )
    parser.add_argument(
        "--directory",
        metavar="FOLDER",
        type=Path,
        help="an empty folder for the replay; default: a new one in RUN/replays",
    )
    parser.add_argument("--json", action="store_true", help="print the contents of replay.json")
    parser.set_defaults(command=run)
    teach(
        parser,
        "replay.md",
        "replay quickstart-20260102-030405",
        "replay --until 20 --algorithm clip_high=0.3",
        "replay --step 12",
        "replay --data 'dynamic_sampling,ordering'",
    )


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Replay, compare and report; 1 if the record is incomplete."""
    from astraflow_contrib_replay_run.recorded_run import ReplayChanges, open_run

    run_directory = find_run(arguments.run, named_by="a").absolute()
    changes = ReplayChanges(
        tuple(arguments.policy),
        tuple(arguments.trainer),
        tuple(arguments.algorithm),
        arguments.data,
        tuple(
            (option, number)
            for option, number in (("--until", arguments.until), ("--step", arguments.step))
            if number is not None
        ),
    )
    given = arguments.directory
    recorded = open_run(run_directory, given.absolute() if given else None, changes)
    for note in recorded.notes:
        print_line(f"astraflow: {note}", sys.stderr)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        return _replay(recorded, arguments)
    except KeyboardInterrupt:
        print_line(
            f"astraflow: interrupted; {recorded.directory} has the updates so far, without {FILE}",
            sys.stderr,
        )
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Have trainers ended first."""
    raise SystemExit(128 + number)


def _replay(recorded: RecordedRun, arguments: argparse.Namespace) -> int:
    from astraflow_contrib_replay_run.batches import RecordedBatches
    from astraflow_contrib_replay_run.redecided import RedecidedBatches
    from astraflow_contrib_replay_run.service import ReplayService, ServedInThread
    from astraflow_contrib_replay_run.trainers import run_here, run_processes
    from astraflow_wire.http.auth import new_token

    if arguments.step is not None and len(recorded.policies) > 1:
        raise UserError(
            f"--step stops in one trainer; name one of {', '.join(recorded.policies)} with --policy"
        )
    kind = RedecidedBatches if recorded.redecides else RecordedBatches
    source: RecordedBatches = kind(recorded, arguments.until)
    began = time.monotonic()

    def told(policy: str, step: ReplayedStep) -> None:
        loss = step.metrics.get("loss")
        shown = "" if loss is None else f", loss {loss:.6g}"
        print_line(f"{policy}: update {step.step}{shown}", sys.stderr)

    token = new_token()
    service = ReplayService(recorded.trainers.run.name, token, recorded.policies, source, told)
    try:
        with ServedInThread(service.app) as url:
            if arguments.step is None:
                run_processes(recorded, url, token)
            else:
                run_here(recorded, url, token, arguments.step)
        seconds = time.monotonic() - began
        source.read_rest()
    finally:
        source.close()
    return _print_result(recorded, service, source, seconds, arguments.json)


def _print_result(
    recorded: RecordedRun,
    service: ReplayService,
    source: RecordedBatches,
    seconds: float,
    as_json: bool,
) -> int:
    from astraflow_contrib_replay_run.comparison import compare, curve_rows, described, verdict
    from astraflow_runtime.launch.results.metrics import read_metrics

    found = {
        policy: compare(policy, replayed, source.record, source.start_digest(policy))
        for policy, replayed in service.policies.items()
    }
    content: dict[str, Any] = {
        "run": str(recorded.run),
        "directory": str(recorded.directory),
        "seconds": seconds,
        "data_policies_changed": recorded.redecides,
        "policies": {
            policy: described(found[policy], replayed, source.record)
            for policy, replayed in service.policies.items()
        },
    }
    (recorded.directory / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    broken = [each.ended for each in service.policies.values() if each.broken]
    if as_json:
        print_json(content)
    else:
        rewards, run_rewards = (
            {
                (s.policy, s.step): s.figures["trained_reward"]
                for s in read_metrics(each).steps
                if "trained_reward" in s.figures
            }
            for each in (recorded.directory, recorded.run)
        )
        for policy, replayed in service.policies.items():
            if replayed.steps:
                print_table(
                    *curve_rows(policy, replayed.steps, source.record, rewards, run_rewards)
                )
            print_line(verdict(found[policy]))
        print_line(f"in {recorded.directory}: {FILE}, metrics.jsonl, models ({seconds:.1f} s)")
    if broken:
        raise RunFailed(broken[0])
    return 0
