"""Writes the final models of a run atomically, and retries while the disk is full."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from astraflow_core.errors import NoRoom
from astraflow_wire.host.disk import LOOK_S, is_full

log = logging.getLogger(__name__)


def leave_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary folder, which then replaces ``folder``. :class:`NoRoom` if the
    disk is full; the old folder is then kept.
    """
    draft = folder.with_name(f".{folder.name}.partial")
    if draft.exists():
        shutil.rmtree(draft)
    try:
        draft.mkdir(parents=True)
        write(draft)
    except Exception as error:
        full = is_full(error, folder.parent)
        shutil.rmtree(draft, ignore_errors=True)
        if full:
            raise NoRoom(f"{folder}: {error}") from error
        raise
    if folder.exists():
        shutil.rmtree(folder)
    draft.rename(folder)


def retry_until(write: Callable[[], None], give_up_after_s: float) -> None:
    """Retry a write while the disk is full; :class:`NoRoom` after ``give_up_after_s``."""
    until = time.monotonic() + give_up_after_s
    told = False
    while True:
        try:
            write()
        except NoRoom as error:
            if time.monotonic() > until:
                raise
            if not told:
                log.warning("%s; retrying for %.0f s; free some disk space", error, give_up_after_s)
            told = True
        else:
            if told:
                log.warning("there is disk space again: the model is written")
            return
        time.sleep(LOOK_S)
