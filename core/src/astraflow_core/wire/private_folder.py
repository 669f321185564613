"""A process's own folder: it vanishes with its owner, and if that was killed with the next one's start."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

_LOCK = "lock"


class PrivateFolder:
    """A new folder with mode 0700 within ``parent``, held by a lock that ends with this process, however
    it ends.

    Creating one removes the orphans in ``parent`` with the same ``prefix``. It is called ``prefix`` and
    ``name``, or something random.
    """

    def __init__(self, parent: Path, prefix: str, name: str = "") -> None:
        parent.mkdir(parents=True, exist_ok=True)
        remove_orphans(parent, prefix)
        made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=parent))
        lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Under its final name it is locked already, so nobody can take it for an orphan.
        self.path = made.rename(parent / (f"{prefix}{name}" if name else made.name[1:]))
        self._remove = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove the folder and all in it; also done when the process exits."""
        self._remove()


def is_held(path: Path) -> bool:
    """Whether ``path`` is a private folder whose owner lives."""
    try:
        lock = os.open(path / _LOCK, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def remove_orphans(parent: Path, prefix: str) -> None:
    """Remove the private folders in ``parent`` with that prefix whose owner is dead."""
    for left in parent.glob(f"{prefix}*"):
        _remove_if_orphaned(left)


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _remove_if_orphaned(path: Path) -> None:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # not one of ours, or its owner is removing it at this moment
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
    else:
        _remove(path, lock)
