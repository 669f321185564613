"""``astraflow mcp``: a server of the Model Context Protocol about the runs of this folder."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.run_directory import RUNS, find_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Serves tools of the Model Context Protocol, by which an agent observes runs and, with --allow-actions, changes "
        "them. An agent starts it and uses its standard streams, or connects to it over HTTP."
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help=f"serve this run alone: path of a run directory, or its name in {RUNS}/; default: all in {RUNS}/",
    )
    parser.add_argument(
        "--allow-actions",
        action="store_true",
        help="also offer tools that change a running run, with its token",
    )
    http = parser.add_argument_group("over HTTP")
    http.add_argument(
        "--http", metavar="HOST:PORT", help="serve streamable HTTP at /mcp; port 0: a free one"
    )
    http.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help="bearer token that clients must send, required by --http; created with a new token if the file does not exist",
    )
    http.add_argument(
        "--certificate", metavar="FILE", type=Path, help="TLS certificate with its chain (PEM)"
    )
    http.add_argument(
        "--private-key", metavar="FILE", type=Path, help="its key (PEM), without a password"
    )
    parser.set_defaults(command=run)
    teach(
        parser,
        "operate-with-an-agent.md",
        "mcp",
        "mcp quickstart-20260102-030405 --allow-actions",
        "mcp --http 127.0.0.1:8791 --token-file mcp.token",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until the client leaves, or until Ctrl-C."""
    from astraflow_contrib_mcp.runs import Runs

    if arguments.http is None and (arguments.token_file or arguments.certificate):
        raise UserError("--token-file and --certificate belong to --http HOST:PORT; give that too")
    only = None if arguments.run is None else find_run(arguments.run, named_by="RUN").resolve()
    runs = Runs(only)
    if only is not None and arguments.allow_actions:
        runs.check_token(only)
    logging.basicConfig(level=logging.WARNING)
    try:
        from astraflow_contrib_mcp.server import build_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise UserError(
            "astraflow mcp needs the package mcp, which is not installed; pip install 'astraflow-contrib-mcp[runtime]'"
        ) from error
    server = build_server(runs, arguments.allow_actions)
    if arguments.http is None:
        from astraflow_contrib_mcp.serving import serve_stdio

        return serve_stdio(server)
    from astraflow_contrib_mcp.serving import serve_http

    return serve_http(
        server,
        arguments.http,
        arguments.token_file,
        arguments.certificate,
        arguments.private_key,
    )
