"""``astraflow raas add | drain``: change the pool of a running run."""

from __future__ import annotations

import argparse
import getpass
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.run_directory import add_run, find_run
from astraflow_runtime.cli.running.asking import add_dataflow, asking

if TYPE_CHECKING:
    from astraflow_wire.http.client import SyncClient
    from astraflow_wire.messages import PoolChanged

_DEADLINE_S = 30.0


def add_more(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``raas add``."""
    add_run(parser)
    parser.add_argument(
        "--token-file", metavar="FILE", type=Path, help="default: the token of the run"
    )
    parser.add_argument("--count", type=int, default=1, help="number of RaaS; default: 1")
    parser.set_defaults(command=run_add)
    teach(parser, "overview.md", "raas add --count 2")


def add_drain(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``raas drain``."""
    add_dataflow(parser)
    parser.add_argument(
        "names", metavar="NAME", nargs="+", help="RaaS, as `astraflow status` lists them"
    )
    parser.set_defaults(command=run_drain)
    teach(parser, "overview.md", "raas drain raas-1 raas-2")


def run_add(arguments: argparse.Namespace) -> int:
    """Request more RaaS."""
    run = find_run(arguments.run, live=True)
    answer = add_raas(run, arguments.count, user(), arguments.token_file)
    print_line(f"{arguments.count} more RaaS requested; {answer.size} are running now")
    return 0


def add_raas(
    run: Path, count: int, author: str, token_file: Path | None = None, id: str = ""
) -> PoolChanged:
    """Ask the launcher of the run in a directory for more RaaS; :class:`UserError` without one. ``id``: of the request in
    the audit log."""
    from astraflow_wire.messages import AddRaas, PoolChanged

    _check_launcher(run)
    message = AddRaas(id=id or uuid.uuid4().hex, count=count, author=author)
    with asking(str(run), None, token_file) as client:
        return client.post("/v1/raas/add", message, PoolChanged, deadline_s=_DEADLINE_S)


def run_drain(arguments: argparse.Namespace) -> int:
    """Drain RaaS, one after the other."""
    with asking(arguments.run, arguments.dataflow, arguments.token_file) as client:
        for name in arguments.names:
            answer = drain_raas(client, name, user())
            print_line(f"{name} finishes its tasks and leaves; {answer.size} remain")
    return 0


def drain_raas(client: SyncClient, name: str, author: str, id: str = "") -> PoolChanged:
    """Ask the dataflow to let a RaaS leave. ``id``: of the request in the audit log."""
    from astraflow_wire.messages import DrainRaas, PoolChanged

    message = DrainRaas(raas=name, author=author, id=id)
    return client.post("/v1/raas/drain", message, PoolChanged, deadline_s=_DEADLINE_S)


def user() -> str:
    """The user who sends the request."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return "unknown"


def _check_launcher(run: Path) -> None:
    """Fail without a launcher: no process would start the RaaS."""
    from astraflow_runtime.file_lock import lock

    file = run / "launcher.lock"
    if file.exists():
        handle = os.open(file, os.O_RDWR)
        try:
            if not lock(handle):
                return
        finally:
            os.close(handle)
    raise UserError(
        f"no launcher is running for the run in {run}, so it cannot start a RaaS; start one "
        f"with `astraflow raas FILE --directory DIR --name NAME --dataflow URL`"
    )
