"""The address to bind, why it cannot be bound, what helps, and TLS for it."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_wire.http.auth import is_loopback

HOST_ADDRESS = "ASTRAFLOW_HOST_ADDRESS"
"""Set by a launcher whose processes are on several hosts: where others reach the services of this one."""

LOOPBACK = "127.0.0.1"
OF_THE_PORT = (errno.EADDRINUSE, errno.EACCES, errno.EPERM)
"""Errors that another port would avoid."""


def own_address(configured: str) -> str:
    """The address to bind: ``configured``, or where the launcher says that this host is reached if the config leaves
    the default, loopback."""
    return os.environ.get(HOST_ADDRESS, configured) if configured == LOOPBACK else configured


def cannot_listen(host: str, port: int, error: OSError) -> str:
    """What keeps a socket from ``host`` and ``port``, with the remedy if there is one."""
    shown = f"[{host}]" if ":" in host else host
    said = f"cannot listen on {shown}{f':{port}' if port else ''}: {error.strerror or error}"
    remedy = remedy_for(port, error)
    return f"{said}; {remedy}" if remedy else said


def remedy_for(port: int, error: OSError) -> str:
    """The remedy; empty if unknown."""
    if isinstance(error, socket.gaierror):
        return "the host must be a name or an address of this machine, such as 127.0.0.1"
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            "the host must be an address of this machine: 127.0.0.1 for this machine alone, 0.0.0.0 for all of "
            "its addresses"
        )
    if port and error.errno in OF_THE_PORT:
        return "choose another port, or 0 for any that is free"
    return ""


def tls_context(
    host: str, certificate: Path | None, private_key: Path | None, *, exposed: str
) -> ssl.SSLContext | None:
    """TLS for a server on ``host`` from two PEM files; ``None`` without them, which only loopback may do. Raises
    :class:`UserError`: ``exposed`` for another host without TLS, or why the files cannot be used."""
    if (certificate is None) != (private_key is None):
        raise UserError("give both --certificate and --private-key, or neither")
    if certificate is None:
        if not is_loopback(host):
            raise UserError(exposed)
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, private_key, password="")
    except (OSError, ValueError) as error:
        raise UserError(
            f"certificate {certificate} and private key {private_key} cannot be used: {error}; expected PEM files that "
            "belong together, the key without a password"
        ) from error
    return context
