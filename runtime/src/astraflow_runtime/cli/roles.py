"""``astraflow dataflow | raas | trainer``: one process of a run, as launchers and clusters start it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError
from astraflow_core.shared_secret import FORM
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.run import add_overrides
from astraflow_runtime.cli.running.secrets import DATAFLOW, TOKEN, read_token
from astraflow_wire.host.process import freeze_gc_after_startup

if TYPE_CHECKING:
    from astraflow_core.config.models import RunConfig
    from astraflow_runtime.config.auto_transport import Joined, Joining

_PAGE = "your-run.md"


def add_dataflow(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``dataflow``."""
    _add_common(parser)
    parser.add_argument(
        "--stay",
        action="store_true",
        help="keep serving after the end of the run until SIGTERM, for processes that start slowly",
    )
    parser.set_defaults(command=run_dataflow)
    teach(parser, _PAGE, "dataflow run.toml --directory /shared/run --token-file token")


def add_raas(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``raas``."""
    _add_common(parser)
    parser.add_argument("--name", required=True, help="name of this RaaS, unique in the run")
    _add_dataflow_url(parser)
    parser.set_defaults(command=run_raas)
    teach(
        parser,
        _PAGE,
        "raas run.toml --directory /shared/run --name raas-1 --dataflow http://10.0.0.1:19100",
    )


def add_trainer(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``trainer``."""
    _add_common(parser)
    parser.add_argument("--policy", required=True, help="policy to train")
    _add_dataflow_url(parser)
    parser.set_defaults(command=run_trainer)
    teach(
        parser,
        _PAGE,
        "trainer run.toml --directory /shared/run --policy solver --dataflow http://10.0.0.1:19100",
    )


def run_dataflow(arguments: argparse.Namespace) -> int:
    """The dataflow."""
    with freeze_gc_after_startup():
        from astraflow_runtime.dataflow.main import serve

        config = _config(arguments)
    token = read_token(arguments.token_file)
    if token.startswith(FORM):
        raise UserError(
            "this token has the rights of one process; a dataflow needs the token of the run, which others are derived from"
        )
    return serve(config, arguments.directory.absolute(), token, stay=arguments.stay)


def run_raas(arguments: argparse.Namespace) -> int:
    """One RaaS."""
    with freeze_gc_after_startup():
        from astraflow_runtime.cli.running.joining import joined
        from astraflow_runtime.raas.main import serve

        url, token = _dataflow_url(arguments), read_token(arguments.token_file)

        def ask(config: RunConfig) -> Joined:
            _encrypt(config)
            return joined(url, token)

        config = _config(arguments, ask)
    return serve(config, arguments.directory.absolute(), token, url, arguments.name)


def run_trainer(arguments: argparse.Namespace) -> int:
    """The trainer of one policy."""
    from astraflow_core.errors import UserError
    from astraflow_core.suggestions import did_you_mean

    with freeze_gc_after_startup():
        from astraflow_runtime.trainer.main import serve

        config, url = _config(arguments), _dataflow_url(arguments)
    if arguments.policy not in config.policies:
        raise UserError(
            f"--policy {arguments.policy!r}: the run has no such policy"
            f"{did_you_mean(arguments.policy, config.policies)} (policies: {', '.join(config.policies)})"
        )
    token = read_token(arguments.token_file)
    return serve(config, arguments.directory.absolute(), token, url, arguments.policy)


def _add_common(parser: argparse.ArgumentParser) -> None:
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


def _add_dataflow_url(parser: argparse.ArgumentParser) -> None:
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
    """The validated config with its models as local folders. A workflow may come as an object. Automatic choices
    are logged."""
    from astraflow_runtime.config.loading import load_config
    from astraflow_runtime.models.folders import resolve_models
    from astraflow_runtime.models.resolver import ModelResolver

    loaded = load_config(arguments.file, arguments.overrides, workflow_given=True, joining=joining)
    _encrypt(loaded.config)
    for note in loaded.notes:
        sys.stderr.write(f"astraflow: {note}\n")
    arguments.directory.mkdir(0o700, parents=True, exist_ok=True)
    return resolve_models(loaded.config, ModelResolver(loaded.catalog))


def _encrypt(config: RunConfig) -> None:
    """From now on this process, and those that it starts, have ``[tls]`` of the run."""
    from astraflow_runtime.config.transport_security import check_tls, tls_of
    from astraflow_wire.http.tls import give_process

    check_tls(config)
    give_process(tls_of(config))
