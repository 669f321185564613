"""Commands that call the dataflow of a running run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError
from astraflow_runtime.cli.run_directory import add_run
from astraflow_runtime.cli.running.secrets import (
    DATAFLOW,
    TOKEN,
    running_dataflow,
    running_run,
    tls_of_run,
)

if TYPE_CHECKING:
    from astraflow_wire.http.client import SyncClient


def add_dataflow(parser: argparse.ArgumentParser) -> None:
    """Declare where a running run is found: ``run``, ``dataflow`` and ``token_file`` of :func:`asking`."""
    place = parser.add_argument_group("which run")
    which = place.add_mutually_exclusive_group()
    add_run(which)
    which.add_argument(
        "--dataflow",
        metavar="URL",
        help=f"address of the dataflow of a remote run; default: environment {DATAFLOW}",
    )
    place.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help=f"default: the token of the run, or environment {TOKEN}",
    )


@contextmanager
def asking(
    run: str | None, dataflow: str | None = None, token_file: Path | None = None
) -> Iterator[SyncClient]:
    """A client of the dataflow of a run (see :func:`running_dataflow`); rejections and timeouts
    become errors of the user.
    """
    from astraflow_core.errors import DeadlineExceeded, Refused
    from astraflow_wire.http.client import SyncClient

    url, token = running_dataflow(run, dataflow, token_file)
    client = SyncClient(url, token, tls=tls_of_run(running_run(run, dataflow)))
    try:
        yield client
    except Refused as error:
        raise UserError(
            f"the dataflow at {url} refused the request: {error} ({error.status})"
        ) from error
    except DeadlineExceeded as error:
        raise UserError(
            f"no dataflow answers at {url}; check that the run is still running ({error})"
        ) from error
    finally:
        client.close()
