"""``astraflow balance``: whether a running run has too few or too many RaaS, and the state of all
its rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line, print_table, print_tree
from astraflow_runtime.cli.running.secrets import running_dataflow, running_run, tls_of_run
from astraflow_runtime.cli.running.status import add_where, ask

_SILENT_S = 60.0
_LONG = 0.1
"""The share of its time above which a trainer's wait is reported."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_where(parser)
    parser.add_argument(
        "--follow",
        action="store_true",
        help="print each report as it is made, until the run ends; with --json one line each",
    )
    parser.set_defaults(command=run, view="balance")
    teach(parser, "overview.md", "balance", "balance --follow")


def run(arguments: argparse.Namespace) -> int:
    """Query the dataflow and print the reply."""
    if arguments.follow:
        for report in _events(arguments):
            if arguments.json:
                print_line(json.dumps(report))
            else:
                _print_report(report)
                print_line()
        return 0
    answer = ask(arguments)
    if arguments.json:
        print_json(answer)
        return 0
    report, pool = answer.pop("report", None), answer.pop("pool", None)
    if report is not None:
        _print_report(report)
        print_line()
    elif pool is not None:
        print_line(f"no report yet; {pool['size']} RaaS are registered\n")
    print_tree(answer)
    return 0


def _print_report(report: dict[str, Any]) -> None:
    pool = report["pool"]
    print_line(f"report {report['number']}: {_verdict(pool, report['policies'])}")
    print_table(
        ("policy", "steps", "seconds", "waiting", "produced", "accepted", "consumed", "says"),
        (
            (
                name, p["steps"], f"{p['window_s']:.1f}", f"{p['waiting_fraction']:.1%}",
                p["tokens_produced"], p["tokens_accepted"], p["tokens_consumed"],
                f"{p['branch']} → {p['target']}",
            )
            for name, p in report["policies"].items()
        ),
    )  # fmt: skip
    print_table(
        ("RaaS", "state", "tokens/s", "busy place-s", "empty place-s", "tokens/busy place-s"),
        (
            (
                r["name"], _state(r), f"{r.get('tokens_per_s', 0):.1f}", f"{r.get('busy_s', 0):.1f}",
                f"{r.get('idle_s', 0):.1f}", f"{r.get('speed', 0):.2f}",
            )
            for r in report["raas"]
        ),
    )  # fmt: skip


def _verdict(pool: dict[str, Any], policies: dict[str, Any]) -> str:
    empty = f"{pool['held_back']:.0%} of the episode slots were idle"
    text = f"{pool['branch']}, {pool['size']} → {pool['target']} RaaS; {empty}"
    waited = max((policy["waiting_fraction"] for policy in policies.values()), default=0.0)
    if pool["branch"] == "hold" and waited >= _LONG and pool["held_back"] >= waited:
        text += ": max_staleness holds tasks back, so more RaaS would also be idle"
    return text


def _state(raas: dict[str, Any]) -> str:
    if raas["draining"]:
        return "draining"
    if raas["set_aside"]:
        return "set aside"
    return str(raas["state"]) if raas["ready"] else "starting"


def _events(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The reports of the event stream, beginning with the retained ones."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection
    from urllib.parse import urlsplit

    from astraflow_wire.http.auth import bearer
    from astraflow_wire.http.tls import client_tls

    url, token = running_dataflow(arguments.run, arguments.dataflow, arguments.token_file)
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    context = client_tls(url, tls_of_run(running_run(arguments.run, arguments.dataflow)))
    opened = (
        HTTPConnection(host, port, timeout=_SILENT_S)
        if context is None
        else HTTPSConnection(host, port, timeout=_SILENT_S, context=context)
    )
    with closing(opened) as connection:
        try:
            path = f"{parts.path.rstrip('/')}/v1/balance/events"
            connection.request("GET", path, headers=bearer(token))
            response = connection.getresponse()
            if response.status != 200:
                said = response.read(2000).decode(errors="replace")
                raise UserError(
                    f"the dataflow at {url} refused the request: {said} ({response.status})"
                )
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        except (OSError, HTTPException) as error:
            raise UserError(
                f"no dataflow answers at {url}; has the run ended? ({error})"
            ) from error
