"""``astraflow raas add | drain``: change the pool of a running run."""

from __future__ import annotations

import argparse
import getpass
import os
import uuid
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.run_directory import add_run, find_run
from astraflow_runtime.cli.running.asking import asking

_DEADLINE_S = 30.0


def add_more(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``raas add``."""
    add_run(parser)
    parser.add_argument("--count", type=int, default=1, help="number of RaaS; default: 1")
    parser.set_defaults(command=run_add)
    teach(parser, "overview.md", "raas add --count 2")


def add_drain(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``raas drain``."""
    add_run(parser)
    parser.add_argument(
        "names", metavar="NAME", nargs="+", help="RaaS, as `astraflow status` lists them"
    )
    parser.set_defaults(command=run_drain)
    teach(parser, "overview.md", "raas drain raas-1 raas-2")


def run_add(arguments: argparse.Namespace) -> int:
    """Ask for more RaaS."""
    from astraflow_wire.messages import AddRaas, PoolChanged

    run = find_run(arguments.run, live=True)
    _check_launcher(run)
    message = AddRaas(id=uuid.uuid4().hex, count=arguments.count, author=user())
    with asking(str(run)) as client:
        answer = client.post("/v1/raas/add", message, PoolChanged, deadline_s=_DEADLINE_S)
    print_line(f"{arguments.count} more RaaS requested; {answer.size} are running now")
    return 0


def run_drain(arguments: argparse.Namespace) -> int:
    """Ask RaaS to leave, one after the other."""
    from astraflow_wire.messages import DrainRaas, PoolChanged

    with asking(arguments.run) as client:
        for name in arguments.names:
            message = DrainRaas(raas=name, author=user())
            answer = client.post("/v1/raas/drain", message, PoolChanged, deadline_s=_DEADLINE_S)
            print_line(f"{name} finishes its tasks and leaves; {answer.size} remain")
    return 0


def user() -> str:
    """Who asks."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may know no name for its user
        return "unknown"


def _check_launcher(run: Path) -> None:
    """Without a launcher nobody would start what is asked for."""
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
