"""``astraflow ui``: pages in a browser about the runs of a folder."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.cli.run_directory import RUNS

if TYPE_CHECKING:
    from astraflow_wire.http.browser_sessions import Scope
    from astraflow_wire.http.server import Server

PORT = 8790
_ASK_S = 5.0
"""Longest that the dataflow of ``--of`` is waited for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Serves pages about all runs in a folder, live or ended, on this host, and prints a link that logs a browser in. "
        "Ctrl-C ends it and does not affect the runs."
    )
    parser.add_argument(
        "runs", metavar="RUNS_DIR", nargs="?", type=Path, default=Path(RUNS),
        help=f"folder with run directories; default: {RUNS}",
    )  # fmt: skip
    parser.add_argument(
        "--bind",
        default="127.0.0.1",
        help="address to listen on; default: 127.0.0.1, this host alone",
    )
    parser.add_argument("--port", type=_port, default=PORT, help=f"default: {PORT}; 0: a free one")
    parser.add_argument(
        "--certificate", metavar="FILE", type=Path, help="TLS certificate with its chain (PEM)"
    )
    parser.add_argument(
        "--private-key", metavar="FILE", type=Path, help="its key (PEM), without a password"
    )
    parser.add_argument(
        "--read-only", action="store_true", help="print links that allow looking, but no actions"
    )
    parser.add_argument(
        "--of",
        metavar="RUN",
        help="serve nothing: print a link to the pages that the dataflow of this running run serves, which has "
        '[plugins] enable = ["pages"]',
    )
    parser.set_defaults(command=run)
    teach(parser, "pages.md", "ui", "ui /data/runs --port 0 --read-only")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:6]) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text[:50]!r} is not a port, a number from 0 to 65535")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from astraflow_contrib_pages.runs_folder import RunsFolder
    from astraflow_contrib_pages.serving import names_of, pages_app, pages_server
    from astraflow_wire.http.auth import new_token
    from astraflow_wire.http.browser_sessions import BrowserSessions

    if arguments.of is not None:
        return _print_link(arguments.of, "read" if arguments.read_only else "full")
    if not arguments.runs.is_dir():
        raise UserError(
            f"there is no folder {arguments.runs}; give the one that holds your run directories: astraflow ui RUNS_DIR"
        )
    sessions = BrowserSessions(new_token())
    app = pages_app(RunsFolder(arguments.runs), sessions, names_of(arguments.bind))

    async def serve() -> None:
        server = pages_server(
            app, arguments.bind, arguments.port, arguments.certificate, arguments.private_key
        )
        async with server:
            print_line(f"pages about the runs in {arguments.runs.resolve()}")
            await _until_stopped(server, "read" if arguments.read_only else "full")

    async def _until_stopped(server: Server, scope: Scope) -> None:
        from astraflow_contrib_pages.serving import login_url

        def tell() -> None:
            print_line(
                f"open {login_url(server.url, arguments.bind, sessions, scope)} (works once, within 5 minutes)"
            )

        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        tell()
        with contextlib.ExitStack() as stack:
            if sys.stdin is not None and sys.stdin.isatty():
                print_line("Enter: another link; Ctrl-C: end")

                def entered() -> None:
                    if sys.stdin.readline():
                        tell()
                    else:
                        loop.remove_reader(sys.stdin)

                loop.add_reader(sys.stdin, entered)
                stack.callback(loop.remove_reader, sys.stdin)
            await stopped.wait()

    asyncio.run(serve())
    return 0


def _print_link(run: str, scope: Scope) -> int:
    from astraflow_contrib_pages.serving import login_url
    from astraflow_core.errors import Refused
    from astraflow_runtime.cli.running.asking import asking
    from astraflow_runtime.cli.running.secrets import running_dataflow
    from astraflow_wire.http.browser_sessions import PREFIX, BrowserSessions

    url, token = running_dataflow(run, None, None)
    with asking(run) as client:
        try:
            client.get_json(f"{PREFIX}api/session", deadline_s=_ASK_S)
        except Refused as refused:
            if refused.status != 404:
                raise
            raise UserError(
                f'the dataflow of {run} serves no pages: it needs [plugins] enable = ["pages"]; without, use astraflow ui with '
                "the folder of the run"
            ) from refused
    print_line(
        f"open {login_url(url, '', BrowserSessions(token), scope)} (works once, within 5 minutes)"
    )
    return 0
