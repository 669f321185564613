"""The temporary folder of a run of pytest: what tests leave in it, and the programs that they start or kill, goes with it."""

from __future__ import annotations

import getpass
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "t-"
"""With eight characters after it: paths of sockets below have at most 107 bytes."""


def own_folder() -> Path | None:
    """Make the folder that is ``TMPDIR`` from here on, in this process and those that it starts; None if it is one of these
    already. Folders of ``tmp_path`` stay where pytest keeps them for whoever looks into a failure."""
    usual = Path(tempfile.gettempdir())
    if usual.name.startswith(PREFIX):
        return None
    made = Path(tempfile.mkdtemp(prefix=PREFIX))
    made.chmod(0o1777)  # as the usual one: tests start processes of other users
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(usual))
    # What torch has compiled is kept, too.
    compiled = usual / f"torchinductor_{getpass.getuser()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
    os.environ["TMPDIR"] = str(made)
    tempfile.tempdir = None  # it is looked up again
    return made


def remove(folder: Path) -> None:
    """Remove it with all that is in it, and use the usual one again."""
    os.environ["TMPDIR"] = str(folder.parent)
    tempfile.tempdir = None
    shutil.rmtree(folder, ignore_errors=True)
