"""Finds a run's dataflow and its token; a token is never on a command line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError
from astraflow_runtime.cli.run_directory import find_run, read_config
from astraflow_wire.http.auth import is_token

if TYPE_CHECKING:
    from astraflow_wire.http.tls import RunTls

TOKEN = "ASTRAFLOW_TOKEN"
DATAFLOW = "ASTRAFLOW_DATAFLOW"


def read_token(file: Path | None) -> str:
    """The token from ``file``, else from the environment."""
    if file is None:
        token = os.environ.get(TOKEN, "").strip()
        if not token:
            raise UserError(f"no token; pass --token-file FILE, or set {TOKEN}")
        return token
    try:
        token = file.read_bytes().decode(errors="replace").strip()
    except OSError as error:
        raise UserError(f"the token file {file} cannot be read: {error.strerror}") from error
    if not is_token(token):
        what = "is not a single line of ASCII without spaces" if token else "is empty"
        raise UserError(f"the token file {file} {what}")
    return token


def running_run(given: str | None, url: str | None) -> Path | None:
    """The directory of a running run, as :func:`find_run` takes it; ``None`` if its dataflow is named by address, here or
    in the environment."""
    if given is None and (url or os.environ.get(DATAFLOW)):
        return None
    return find_run(given, live=True, otherwise=f", or set {DATAFLOW} to the URL of its dataflow")


def tls_of_run(run: Path | None) -> RunTls | None:
    """The TLS of the run in a directory; ``None`` if it has none, or is known by address only: then that of the environment
    counts. Raises :class:`UserError` if its config cannot be read."""
    if run is None or not (run / "config.toml").exists():  # its processes were started one by one
        return None
    table = read_config(run).get("tls")
    if table is None:
        return None
    from astraflow_runtime.config.transport_security import tls_of_raw

    return tls_of_raw({"tls": table})


def running_dataflow(
    given: str | None, url: str | None, token_file: Path | None
) -> tuple[str, str]:
    """Address and token of a running dataflow: by a run as :func:`find_run` takes it, by address, or by the
    environment; else that of the newest run."""
    run = running_run(given, url)
    if run is None:
        return url or os.environ[DATAFLOW], read_token(token_file)
    place = run / "dataflow.json"
    try:
        url = json.loads(place.read_text(encoding="utf-8"))["url"]
    except OSError as error:
        raise UserError(
            f"the run in {run} is not running: {place} cannot be read ({error.strerror})"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{place} does not contain the address of the dataflow: {error!r}"
        ) from error
    if (run / "summary.json").exists():  # the launcher wrote it last
        raise UserError(
            f"the run in {run} has ended; `astraflow report --run {run}` shows its results"
        )
    own = run / "token"  # a run whose processes were started one by one has none
    return str(url), read_token(token_file or (own if own.exists() else None))
