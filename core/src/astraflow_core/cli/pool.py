"""``astraflow raas add | drain``: change the pool of a running run."""

from __future__ import annotations

import argparse
import getpass
import os
import uuid
from pathlib import Path

from astraflow_core.cli.asking import asking
from astraflow_core.errors import UserError

ROLE = "raas"
_DEADLINE_S = 30.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare both. ``raas FILE`` is the role of one process, so these are commands of two words."""
    more = commands.add_parser(
        f"{ROLE} add", help="ask the launcher of a running run for more RaaS"
    )
    more.add_argument("run", metavar="RUN", type=Path, help="run directory")
    more.add_argument("--count", type=int, default=1, help="how many; default 1")
    more.set_defaults(command=run_add)
    less = commands.add_parser(
        f"{ROLE} drain", help="let RaaS of a running run finish what they have, and leave"
    )
    less.add_argument("run", metavar="RUN", type=Path, help="run directory")
    less.add_argument(
        "names", metavar="NAME", nargs="+", help="RaaS, as `astraflow status` lists them"
    )
    less.set_defaults(command=run_drain)


def run_add(arguments: argparse.Namespace) -> int:
    """Ask for more RaaS."""
    from astraflow_core.wire.messages import AddRaas, PoolChanged

    _check_launcher(arguments.run)
    message = AddRaas(id=uuid.uuid4().hex, count=arguments.count, author=user())
    with asking(arguments.run) as client:
        answer = client.post("/v1/raas/add", message, PoolChanged, deadline_s=_DEADLINE_S)
    print(f"{arguments.count} more RaaS asked for; {answer.size} are there now")
    return 0


def run_drain(arguments: argparse.Namespace) -> int:
    """Ask RaaS to leave, one after the other."""
    from astraflow_core.wire.messages import DrainRaas, PoolChanged

    with asking(arguments.run) as client:
        for name in arguments.names:
            message = DrainRaas(raas=name, author=user())
            answer = client.post("/v1/raas/drain", message, PoolChanged, deadline_s=_DEADLINE_S)
            print(f"{name} finishes what it has and leaves; {answer.size} stay")
    return 0


def user() -> str:
    """Who asks."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may know no name for its user
        return "unknown"


def _check_launcher(run: Path) -> None:
    """Without a launcher nobody would start what is asked for."""
    from astraflow_core.file_lock import lock

    file = run / "launcher.lock"
    if file.exists():
        handle = os.open(file, os.O_RDWR)
        try:
            if not lock(handle):
                return
        finally:
            os.close(handle)
    raise UserError(
        f"no launcher is at work on the run in {run}, so that nobody would start a RaaS; start one yourself "
        f"with `astraflow {ROLE} FILE --directory DIR --name NAME --dataflow URL`"
    )
