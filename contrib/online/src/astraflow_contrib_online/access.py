"""How a service finds the gateway of a run and is let in: files in the folder ``online`` of the run directory."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from astraflow_core.errors import PreflightError
from astraflow_wire.host.disk import replace_file, when_room
from astraflow_wire.http.auth import new_token

PRIVATE = 0o600


def token_of(run: Path, variable: str | None) -> str:
    """The token in the environment variable, or that of the run, which the first RaaS makes. :class:`PreflightError` if
    the variable is not set."""
    if variable is not None:
        if token := os.environ.get(variable):
            return token
        raise PreflightError(
            f"workflow 'online': the environment variable {variable} ([workflow] token_env) is not set for this RaaS"
        )
    file = run / "online" / "token"
    when_room(lambda: _write_once(file, new_token()), file)
    return file.read_text().strip()


def announce(run: Path, raas: str, url: str, variable: str | None) -> None:
    """Write where the gateway of ``raas`` listens, and where the token lies, for services and ``astraflow status``."""
    place = (
        str(run / "online" / "token") if variable is None else f"environment variable {variable}"
    )
    file = run / "online" / f"{raas}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    content = msgspec.json.encode({"url": url, "token": place, "pid": os.getpid()})
    when_room(lambda: replace_file(file, content, PRIVATE), file)


def _write_once(file: Path, text: str) -> None:
    """Write ``file`` whole, unless another process has: all read the same."""
    file.parent.mkdir(parents=True, exist_ok=True)
    own = file.with_name(f".token-{os.getpid()}")
    replace_file(own, text + "\n", PRIVATE)
    try:
        os.link(own, file)
    except FileExistsError:
        pass
    finally:
        own.unlink()
