"""The temporary folder of a run of pytest: what tests leave in it, and the programs that they start or kill, goes with it."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "t-"
"""With eight characters after it: paths of sockets below have at most 107 bytes."""
LOCK = "lock"


def own_folder() -> Path | None:
    """Make the folder that is ``TMPDIR`` from here on, in this process and those that it starts; None if it is one of these
    already. Folders of ``tmp_path`` stay where pytest keeps them for whoever looks into a failure."""
    usual = Path(tempfile.gettempdir())
    if usual.name.startswith(PREFIX):
        return None
    for left in usual.glob(f"{PREFIX}*"):
        _remove_if_orphaned(left)
    made = Path(tempfile.mkdtemp(prefix=PREFIX))
    made.chmod(0o1777)  # as the usual one: tests start processes of other users
    # It has its name once it is locked, by this process and its forks.
    fcntl.flock(os.open(made / "new", os.O_CREAT | os.O_RDWR, 0o600), fcntl.LOCK_EX)
    (made / "new").rename(made / LOCK)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(usual))
    # What torch has compiled is kept, too.
    compiled = usual / f"torchinductor_{getpass.getuser()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
    os.environ["TMPDIR"] = str(made)
    tempfile.tempdir = None  # it is looked up again
    return made


def _remove_if_orphaned(folder: Path) -> None:
    """That of a run that was killed; one of another user cannot be opened."""
    with contextlib.suppress(OSError), (folder / LOCK).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove it with all that is in it, and use the usual one again."""
    os.environ["TMPDIR"] = str(folder.parent)
    tempfile.tempdir = None
    shutil.rmtree(folder, ignore_errors=True)
