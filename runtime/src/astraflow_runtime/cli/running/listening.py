"""Where a command serves, who may reach it, and the token that its clients send."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from astraflow_core.errors import UserError
from astraflow_runtime.cli.running.secrets import read_token
from astraflow_wire.http.auth import new_token
from astraflow_wire.http.listening import tls_context


def listen_address(text: str, option: str, example: str) -> tuple[str, int]:
    """``HOST:PORT`` as ``option`` was given it, an IPv6 address in brackets; :class:`UserError` shows ``example`` if it is
    none."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        pass
    else:
        if host and port is not None and parts.netloc == text and parts.username is None:
            return host, port
    raise UserError(f"{option} {text!r}: expected HOST:PORT, such as {example}")


def listen_tls(
    host: str, option: str, secret: str, certificate: Path | None, private_key: Path | None
) -> ssl.SSLContext | None:
    """TLS for a server on ``host``, which ``option`` named. :class:`UserError` if other hosts reach it without TLS, so that
    ``secret`` would be read on the way, or if the files cannot be used."""
    exposed = (
        f"{option} {host} is reached by other hosts, and the {secret} would travel in clear text: give --certificate and "
        "--private-key, or listen on 127.0.0.1 and forward the port (ssh -L)"
    )
    return tls_context(host, certificate, private_key, exposed=exposed)


def kept_token(file: Path, prefix: str = "") -> str:
    """The token in ``file``, which is written first, with ``prefix``, if there is none; only its owner can read it."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(file)
    except OSError as error:
        raise UserError(
            f"the token file {file} cannot be written: {error.strerror}; give another with --token-file"
        ) from error
    with os.fdopen(handle, "w", encoding="ascii") as opened:
        opened.write(f"{prefix}{new_token()}\n")
    return read_token(file)
