"""Why an address cannot be bound, and what helps."""

from __future__ import annotations

import errno
import socket

OF_THE_PORT = (errno.EADDRINUSE, errno.EACCES, errno.EPERM)
"""Errors that another port has not."""


def cannot_listen(host: str, port: int, error: OSError) -> str:
    """What keeps a socket from ``host`` and ``port``, with the remedy if there is one."""
    shown = f"[{host}]" if ":" in host else host
    said = f"cannot listen on {shown}{f':{port}' if port else ''}: {error.strerror or error}"
    remedy = remedy_for(port, error)
    return f"{said}; {remedy}" if remedy else said


def remedy_for(port: int, error: OSError) -> str:
    """What helps; empty if nobody can say."""
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
