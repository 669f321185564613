"""``astraflow dataflow | raas | trainer``: one process of a run, as launchers and clusters start it."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.cli.run import add_overrides
from astraflow_core.cli.secrets import DATAFLOW, TOKEN, read_token
from astraflow_core.lasting import made_to_last

if TYPE_CHECKING:
    from astraflow_core.config.auto_transport import Joining
    from astraflow_core.config.models import RunConfig


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the three commands."""
    dataflow = _role(commands, "dataflow", "serve prompts, trajectories and batches")
    dataflow.add_argument(
        "--stay",
        action="store_true",
        help="stay after the end of the run until SIGTERM, for processes that start slowly",
    )
    dataflow.set_defaults(command=run_dataflow)
    raas = _role(commands, "raas", "roll out tasks of a dataflow")
    raas.add_argument("--name", required=True, help="name of this RaaS, unique in the run")
    _add_dataflow(raas)
    raas.set_defaults(command=run_raas)
    trainer = _role(commands, "trainer", "train one policy on batches of a dataflow")
    trainer.add_argument("--policy", required=True, help="policy to train")
    _add_dataflow(trainer)
    trainer.set_defaults(command=run_trainer)


def run_dataflow(arguments: argparse.Namespace) -> int:
    """The dataflow."""
    with made_to_last():
        from astraflow_core.dataflow.main import serve

        config = _config(arguments)
    token = read_token(arguments.token_file)
    return serve(config, arguments.directory.absolute(), token, stay=arguments.stay)


def run_raas(arguments: argparse.Namespace) -> int:
    """One RaaS."""
    with made_to_last():
        from astraflow_core.cli.joining import joined
        from astraflow_core.raas.main import serve

        url, token = _dataflow_url(arguments), read_token(arguments.token_file)
        config = _config(arguments, partial(joined, url, token))
    return serve(config, arguments.directory.absolute(), token, url, arguments.name)


def run_trainer(arguments: argparse.Namespace) -> int:
    """The trainer of one policy."""
    from astraflow_core.errors import UserError
    from astraflow_core.suggestions import did_you_mean

    with made_to_last():
        from astraflow_core.trainer.main import serve

        config, url = _config(arguments), _dataflow_url(arguments)
    if arguments.policy not in config.policies:
        raise UserError(
            f"--policy {arguments.policy!r}: the run has no such policy"
            f"{did_you_mean(arguments.policy, config.policies)} (policies: {', '.join(config.policies)})"
        )
    token = read_token(arguments.token_file)
    return serve(config, arguments.directory.absolute(), token, url, arguments.policy)


def _role(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=f"{text} (one process)")
    parser.add_argument(
        "file", metavar="FILE", help="the run's TOML file, the same for every process"
    )
    parser.add_argument(
        "--directory", type=Path, required=True, help="run directory, shared or of this host"
    )
    parser.add_argument(
        "--token-file", type=Path, help=f"file with the run's token (default: environment {TOKEN})"
    )
    add_overrides(parser)
    return parser


def _add_dataflow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataflow", metavar="URL", help=f"the dataflow (default: environment {DATAFLOW})"
    )


def _dataflow_url(arguments: argparse.Namespace) -> str:
    from astraflow_core.errors import UserError

    url: str = arguments.dataflow or os.environ.get(DATAFLOW, "")
    if not url.startswith(("http://", "https://")):
        raise UserError(
            f"the dataflow's address is {url!r}: give --dataflow http://HOST:PORT, or set {DATAFLOW}"
        )
    return url


def _config(arguments: argparse.Namespace, joining: Joining | None = None) -> RunConfig:
    """The validated config with its models as local folders. A workflow may come as an object. What was chosen in
    the user's place is told."""
    from astraflow_core.config.load import load_config
    from astraflow_core.hooks import Hooks
    from astraflow_core.model_folders import resolve_models

    loaded = load_config(arguments.file, arguments.overrides, workflow_given=True, joining=joining)
    for note in loaded.notes:
        sys.stderr.write(f"astraflow: {note}\n")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    return resolve_models(loaded.config, Hooks.for_models(loaded.catalog))
