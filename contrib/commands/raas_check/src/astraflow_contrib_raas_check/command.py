"""``astraflow raas check URL``: whether a rollout service, ours or yours, keeps the protocol."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line
from astraflow_runtime.cli.run import add_overrides
from astraflow_runtime.cli.running.secrets import DATAFLOW, TOKEN, read_token

if TYPE_CHECKING:
    from astraflow_contrib_raas_check.outcome import RequirementOutcome

_MARKS = {"passed": "passed  ", "failed": "FAILED  ", "skipped": "skipped "}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Serves a scripted dataflow and the weights of the run's models, and reports what the RaaS "
        f"that connects to it does with them. Point the RaaS to it with {DATAFLOW} and {TOKEN}, or let the check "
        "start it. Exits with 1 if a requirement is not met."
    )
    parser.add_argument(
        "url",
        metavar="URL",
        help="where the RaaS serves GET /v1/health, or a file in which it writes {'url': …}; - for nowhere",
    )
    parser.add_argument("file", metavar="FILE", help="TOML file of a run that the RaaS is made for")
    add_overrides(parser)
    parser.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="address of the scripted dataflow; default: a free port on loopback",
    )
    parser.add_argument(
        "--token-file", type=Path, help=f"file with a token for both (default: environment {TOKEN})"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="maximum time for one requirement (default: 30)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--start", metavar="COMMAND", default="", help="start the RaaS by this command, as one word"
    )
    parser.set_defaults(command=run)
    teach(
        parser,
        "custom-raas.md",
        'raas check http://127.0.0.1:19190 run.toml --start "python raas.py model --port 19190"',
        "raas check - run.toml --listen 10.0.0.1:19180 --token-file token",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print what each demand came to; 1 if one is not met."""
    from dataclasses import asdict

    from astraflow_contrib_raas_check.check import CheckOptions, check_raas
    from astraflow_runtime.cli.running.listening import listen_address
    from astraflow_runtime.config.loading import load_config
    from astraflow_wire.http.auth import new_token

    start = shlex.split(arguments.start)
    host, port = listen_address(arguments.listen, "--listen", "127.0.0.1:19180")
    given = arguments.token_file is not None or bool(os.environ.get(TOKEN))
    asked = CheckOptions(
        load_config(arguments.file, arguments.overrides, workflow_given=True),
        read_token(arguments.token_file) if given or not start else new_token(),
        health="" if arguments.url == "-" else arguments.url,
        host=host,
        port=port,
        command=start,
        seconds=arguments.patience,
    )

    def waiting(url: str) -> None:
        if not arguments.json:
            print_line(f"waiting for the RaaS at {url} ({DATAFLOW})")

    def say(outcome: RequirementOutcome) -> None:
        if not arguments.json:
            print_line(f"{_MARKS[outcome.state]}{outcome.demand}: {outcome.text}")
            if outcome.fix:
                print_line(f"{'':8}→ {outcome.fix}")

    outcomes = check_raas(asked, say, waiting)
    missed = [outcome for outcome in outcomes if outcome.state != "passed"]
    if arguments.json:
        print_json([asdict(outcome) for outcome in outcomes])
    else:
        print_line(f"{len(outcomes) - len(missed)} of {len(outcomes)} requirements are met")
    return 1 if missed else 0
