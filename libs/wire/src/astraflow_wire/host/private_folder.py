"""A private folder of a process: removed when its owner exits or, if that was killed, when the next
owner starts.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import weakref
from pathlib import Path

from astraflow_wire.host.disk import when_room

_LOCK = "lock"
_NONE_OF_OURS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


class PrivateFolder:
    """A new folder with mode 0700 within ``parent``, held by a lock that ends with this process, however
    it ends.

    Creating one removes the orphans in ``parent`` with the same ``prefix``. Its name is ``prefix``
    and ``name``, or random.
    """

    def __init__(self, parent: Path, prefix: str, name: str = "") -> None:
        self.path, lock = when_room(lambda: _make(parent, prefix, name), parent)
        self._remove = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove the folder and all in it; also done when the process exits."""
        self._remove()


def _make(parent: Path, prefix: str, name: str) -> tuple[Path, int]:
    """The folder, and the file that holds its lock."""
    parent.mkdir(parents=True, exist_ok=True)
    remove_orphans(parent, prefix)
    made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=parent))
    try:
        lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:
        made.rmdir()
        raise
    fcntl.flock(lock, fcntl.LOCK_EX)
    # It is locked before it gets its final name, so that no other process takes it for an orphan.
    return made.rename(parent / f"{prefix}{name or secrets.token_hex(8)}"), lock


def is_held(path: Path) -> bool:
    """Whether ``path`` is a private folder whose owner lives."""
    try:
        lock = os.open(path / _LOCK, os.O_RDONLY | os.O_NONBLOCK)
    except _NONE_OF_OURS:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def remove_orphans(parent: Path, prefix: str) -> None:
    """Remove the private folders of this user in ``parent`` with that prefix whose process is dead.
    Other users may have created folders with such names in a temporary folder.
    """
    for left in parent.glob(f"{prefix}*"):
        _remove_if_orphaned(left)


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _remove_if_orphaned(path: Path) -> None:
    try:
        lock = _open_own(path)
    except _NONE_OF_OURS:
        return  # or its owner is removing it at this moment
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
    else:
        _remove(path, lock)


def _open_own(path: Path) -> int:
    """The lock in ``path``, which must be a folder of this user and no link to one."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        return os.open(_LOCK, os.O_RDWR | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
