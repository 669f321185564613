"""Full disks: detects them, and waits until there is disk space again."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from astraflow_core.errors import NoRoom

log = logging.getLogger(__name__)

T = TypeVar("T")

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)
"""Disk full, quota exceeded, file size limit, or too many open files of the process or host: each
can be fixed while the run waits.
"""

LONGEST_WAIT_S = 86400.0
"""How long a run waits for disk space on a full disk."""

LOOK_S = 1.0
_FULL_BYTES = 1 << 20
_PROBE_BYTES = 1 << 12


def says_full(error: BaseException) -> bool:
    """Whether the number or the text of an error means that the disk is full."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    return isinstance(error, NoRoom) or any(os.strerror(code) in str(error) for code in FULL)


def is_full(error: BaseException, folder: Path) -> bool:
    """Whether a write in ``folder`` failed because the disk is full. Libraries do not always report
    this: then the disk itself is tested.
    """
    if says_full(error):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return False
    return shutil.disk_usage(_existing_folder(folder)).free < _FULL_BYTES


def lacking(folder: Path) -> str:
    """Why no file can be written in ``folder`` now; empty if one can. Tested with a page of data."""
    probe = _existing_folder(folder) / f".room-{os.getpid()}"
    try:
        with probe.open("wb", buffering=0) as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return f"{error.strerror}: {folder}" if error.errno in FULL else ""
    finally:
        probe.unlink(missing_ok=True)
    return ""


def when_room(
    write: Callable[[], T],
    path: Path,
    *,
    needs: int = 0,
    longest_s: float = LONGEST_WAIT_S,
    report: Callable[[str], None] = log.warning,
) -> T:
    """The result of ``write``, which is retried while the disk has no room for ``path``, a file or
    folder; a failed call must leave nothing behind. The wait, with the room that it needs
    (``needs`` bytes, if known), and its end are each logged once. :class:`NoRoom` after
    ``longest_s``; any other error is raised at once.
    """
    wait = _Wait(path, needs, longest_s, report)
    while True:
        try:
            written = write()
        except Exception as error:
            if not wait.bears(error):
                raise
        else:
            wait.end()
            return written
        time.sleep(LOOK_S)


async def room_for(write: Callable[[], T], path: Path, *, needs: int = 0) -> T:
    """:func:`when_room` for an event loop: ``write`` runs in a thread, and the loop continues while it waits."""
    import asyncio  # 20 ms that commands which only read files save

    wait = _Wait(path, needs, LONGEST_WAIT_S, log.warning)
    while True:
        try:
            written = await asyncio.to_thread(write)
        except Exception as error:
            if not wait.bears(error):
                raise
        else:
            wait.end()
            return written
        await asyncio.sleep(LOOK_S)


def replace_file(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Replace a file atomically."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


class _Wait:
    """One wait for room, and its log messages."""

    def __init__(
        self, path: Path, needs: int, longest_s: float, report: Callable[[str], None]
    ) -> None:
        self._path, self._needs, self._longest_s, self._report = path, needs, longest_s, report
        self._since: float | None = None

    def bears(self, error: Exception) -> bool:
        """Whether to retry: only if the disk is full. :class:`NoRoom` if the wait has lasted too
        long.
        """
        if not is_full(error, self._path.parent):
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
            free = shutil.disk_usage(_existing_folder(self._path)).free
            needs = f"about {self._needs / 1e6:.1f} MB are needed, " if self._needs else ""
            self._report(
                f"{self._path} waits for disk space: {error}; {needs}{free / 1e6:.1f} MB are free. The write "
                "continues when enough space is free"
            )
        if now - self._since >= self._longest_s:
            waited = f"{self._path}: {error}; there was no disk space for {now - self._since:.0f} s"
            raise NoRoom(waited) from error
        return True

    def end(self) -> None:
        """The write succeeded."""
        if self._since is not None:
            waited_s = time.monotonic() - self._since
            self._report(
                f"there is disk space again: {self._path} is written after {waited_s:.0f} s"
            )


def _existing_folder(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next((folder for folder in (path, *path.parents) if folder.is_dir()), Path("/"))
