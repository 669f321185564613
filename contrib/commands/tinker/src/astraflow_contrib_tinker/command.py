"""``astraflow tinker serve``: a server that unmodified Tinker clients train and sample with."""

from __future__ import annotations

import argparse
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Serves a model to training scripts written for Tinker: they compute gradients, make optimizer steps, "
        "sample and save with the unmodified `tinker` client. Ctrl-C ends the server; states saved by name stay in "
        "--directory."
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="a run's TOML file: it serves the model, trainer and engine of a policy; default: a tiny random model",
    )
    parser.add_argument(
        "--policy", metavar="NAME", help="the policy of the file, if it has several"
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a key of the file, as in `astraflow run --set`; may be repeated",
    )
    where = parser.add_argument_group("where")
    where.add_argument(
        "--listen", metavar="HOST:PORT", default="127.0.0.1:8792", help="default: %(default)s"
    )
    where.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help="the key that clients send as TINKER_API_KEY, beginning with tml-; a file that does not exist is written; "
        "default: a new key, which is printed",
    )
    where.add_argument(
        "--keys",
        metavar="FILE",
        type=Path,
        help="a TOML file for several users, instead of --token-file: a table for each, with key, and optionally the limits "
        "requests (in progress), models and disk_gib; keys are isolated from each other and served alternately",
    )
    where.add_argument(
        "--certificate", metavar="FILE", type=Path, help="TLS certificate with its chain (PEM)"
    )
    where.add_argument(
        "--private-key", metavar="FILE", type=Path, help="its key (PEM), without a password"
    )
    where.add_argument(
        "--directory",
        metavar="FOLDER",
        type=Path,
        default=Path("tinker"),
        help="folder for states that clients save by name; default: %(default)s",
    )
    where.add_argument(
        "--keep-every",
        metavar="STEPS",
        type=_count,
        default=0,
        help="keep running models in --directory, with a state after this number of optimizer steps and the later requests: when "
        "the server is restarted, even if it was killed, its clients continue; needs --token-file or --keys; default: models end with the server",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--models",
        metavar="N",
        type=_count,
        default=4,
        help="maximum number of models in training; default: %(default)s",
    )
    limits.add_argument(
        "--engines",
        metavar="N",
        type=_count,
        default=2,
        help="engines for sampling, each with one version of the weights at a time; default: %(default)s",
    )
    parser.set_defaults(command=run)
    teach(
        parser,
        "tinker.md",
        "tinker serve",
        "tinker serve run.toml --listen 127.0.0.1:9000 --token-file tinker.key",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    try:
        from astraflow_contrib_tinker.serving import serve
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("google", "zstandard"):
            raise
        raise UserError(
            f"astraflow tinker serve needs the package {'protobuf' if package == 'google' else package}, which is not "
            "installed; pip install 'astraflow-contrib-tinker[runtime]'"
        ) from error
    return serve(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 to 1024")
    return int(text)
