"""Folders of the sockets between processes of one host: a RaaS and its engine hosts, ranks of a
trainer.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from astraflow_wire.host.private_folder import PrivateFolder, remove_orphans

_PREFIX = "astraflow-"
_LONGEST_IPC_PATH = 100


def _parent() -> Path:
    """Short enough for an ``ipc://`` address."""
    usual = tempfile.gettempdir()
    return Path(usual if len(usual) < _LONGEST_IPC_PATH - 40 else "/tmp")  # noqa: S108


def socket_folder(name: str = "") -> PrivateFolder:
    """A fresh folder; with a ``name``, which must be new, it is at :func:`agreed_folder`."""
    return PrivateFolder(_parent(), _PREFIX, name)


def agreed_folder(name: str) -> Path:
    """The path of the :func:`socket_folder` of that name."""
    return _parent() / f"{_PREFIX}{name}"


def remove_orphaned_sockets() -> None:
    """Remove the folders of processes that were killed."""
    remove_orphans(_parent(), _PREFIX)
