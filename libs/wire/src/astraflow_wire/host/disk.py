"""A full disk: telling it from other trouble with files, and waiting until there is disk space again."""

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
"""Disk full, quota used up, largest size of a file reached, most open files of the process or of the host: somebody
can put each of them right while the run waits."""

LONGEST_WAIT_S = 86400.0
"""How long a run waits for disk space on a full disk."""

LOOK_S = 1.0
_FULL_BYTES = 1 << 20
_PROBE_BYTES = 1 << 12


def says_full(error: BaseException) -> bool:
    """Whether an error says by its number, or by its text as those of libraries do, that there is no room."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    return isinstance(error, NoRoom) or any(os.strerror(code) in str(error) for code in FULL)


def is_full(error: BaseException, folder: Path) -> bool:
    """Whether what went wrong while ``folder`` was written is that there is no room. Libraries that write
    files of their own do not always say so: then the disk itself is asked."""
    if says_full(error):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return False
    return shutil.disk_usage(_there(folder)).free < _FULL_BYTES


def lacking(folder: Path) -> str:
    """Why no file can be written in ``folder`` now; empty if one can. It is tried, with a page of data."""
    probe = _there(folder) / f".room-{os.getpid()}"
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
    tell: Callable[[str], None] = log.warning,
) -> T:
    """What ``write`` returns, which is called again while there is no room for ``path``, a file or folder; it must
    leave nothing half done. What waits, and for how much room (``needs`` bytes, if known), is told once, and when
    it continues. :class:`NoRoom` after ``longest_s``; any other error is raised at once."""
    wait = _Wait(path, needs, longest_s, tell)
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
    import asyncio  # 20 ms that commands which only look at files do without

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
    """Write a file whole or not at all, in the place of an older one."""
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
    """One wait for room, and what is told about it."""

    def __init__(
        self, path: Path, needs: int, longest_s: float, tell: Callable[[str], None]
    ) -> None:
        self._path, self._needs, self._longest_s, self._tell = path, needs, longest_s, tell
        self._since: float | None = None

    def bears(self, error: Exception) -> bool:
        """Whether it is tried again: not what is not a full disk. :class:`NoRoom` if it has lasted for too long."""
        if not is_full(error, self._path.parent):
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
            free = shutil.disk_usage(_there(self._path)).free
            needs = f"about {self._needs / 1e6:.1f} MB are needed, " if self._needs else ""
            self._tell(
                f"{self._path} waits for disk space: {error}; {needs}{free / 1e6:.1f} MB are free. The write "
                "continues when enough space is free"
            )
        if now - self._since >= self._longest_s:
            waited = f"{self._path}: {error}; there was no disk space for {now - self._since:.0f} s"
            raise NoRoom(waited) from error
        return True

    def end(self) -> None:
        """It is written."""
        if self._since is not None:
            waited_s = time.monotonic() - self._since
            self._tell(f"there is disk space again: {self._path} is written after {waited_s:.0f} s")


def _there(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next((folder for folder in (path, *path.parents) if folder.is_dir()), Path("/"))
