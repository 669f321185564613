"""Where a command finds a run's dataflow and its token; a token is never on a command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from astraflow_core.errors import UserError

TOKEN = "ASTRAFLOW_TOKEN"
DATAFLOW = "ASTRAFLOW_DATAFLOW"


def read_token(file: Path | None) -> str:
    """The token from ``file``, else from the environment."""
    if file is None:
        token = os.environ.get(TOKEN, "").strip()
        if not token:
            raise UserError(f"no token: give --token-file FILE, or set {TOKEN}")
        return token
    try:
        token = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(f"the token file {file} cannot be read: {error.strerror}") from error
    if not token:
        raise UserError(f"the token file {file} is empty")
    return token


def running_dataflow(run: Path | None, url: str | None, token_file: Path | None) -> tuple[str, str]:
    """Address and token of a running dataflow: by run directory, by address, or by the environment."""
    if run is None:
        url = url or os.environ.get(DATAFLOW)
        if not url:
            raise UserError(
                f"which run? give --run DIR (a run directory), --dataflow URL, or set {DATAFLOW}{_latest()}"
            )
        return url, read_token(token_file)
    place = run / "dataflow.json"
    try:
        url = json.loads(place.read_text(encoding="utf-8"))["url"]
    except OSError as error:
        raise UserError(
            f"no run is running in {run}: {place} cannot be read ({error.strerror})"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{place} does not say where the dataflow is: {error!r}") from error
    return str(url), read_token(token_file or run / "token")


def _latest() -> str:
    found = sorted(Path("runs").glob("*/dataflow.json"), key=lambda file: file.stat().st_mtime)
    return f"; the latest here: --run {found[-1].parent}" if found else ""
