"""Where the sockets lie over which a RaaS talks to its engine hosts."""

from __future__ import annotations

import tempfile
from pathlib import Path

from astraflow_core.wire.private_folder import PrivateFolder, remove_orphans

_PREFIX = "astraflow-"
_LONGEST_IPC_PATH = 100


def _parent() -> Path:
    """Short enough for an ``ipc://`` address."""
    usual = tempfile.gettempdir()
    return Path(usual if len(usual) < _LONGEST_IPC_PATH - 40 else "/tmp")  # noqa: S108


def socket_folder() -> PrivateFolder:
    """A fresh folder."""
    return PrivateFolder(_parent(), _PREFIX)


def remove_orphaned_sockets() -> None:
    """Remove the folders of RaaS that were killed."""
    remove_orphans(_parent(), _PREFIX)
