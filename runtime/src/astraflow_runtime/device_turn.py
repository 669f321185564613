"""The lock on devices that a trainer and engines of one host share; the kernel releases it when its
process dies. Engines hold it shared, a trainer exclusively. A trainer that waits for it holds a
second lock, which engines check.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from astraflow_core.errors import DeadlineExceeded
from astraflow_runtime.file_lock import lock
from astraflow_wire.host.disk import is_full, when_room

FOLDER = "devices"
"""The folder of the locks in the run's ``state``."""


class SharedDeviceLock:
    """The lock for process ``name`` (``raas-0``, ``trainer-solver``) in ``folder``, which all
    processes share.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._turn, self._want, self._notes = folder / "turn", folder / "want", folder / "holders"
        self._name = name
        self._held: int | None = None
        when_room(self._make_files, folder)

    @contextlib.contextmanager
    def exclusive(self, deadline_s: float) -> Iterator[None]:
        """Hold the devices exclusively, once all engines sleep; :class:`DeadlineExceeded` names the
        holders.
        """
        with _opened(self._want) as want, _opened(self._turn) as turn:
            if not (lock(want, deadline_s) and lock(turn, deadline_s)):
                raise DeadlineExceeded(self.holders(), "the devices that are shared", deadline_s)
            fcntl.flock(want, fcntl.LOCK_UN)
            with self._noted():
                yield

    def acquire(self) -> bool:
        """Hold the devices shared with other engines; false while a trainer holds or waits for
        them.
        """
        if self._held is not None:
            return True
        if self.exclusive_pending():
            return False
        file = os.open(self._turn, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._held = file
        self._write_note()
        return True

    def release(self) -> None:
        """Release the devices."""
        if self._held is not None:
            self._note().unlink(missing_ok=True)
            os.close(self._held)
            self._held = None

    def exclusive_pending(self) -> bool:
        """Whether a trainer waits for the devices."""
        with _opened(self._want) as want:
            try:
                fcntl.flock(want, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def holders(self) -> str:
        """The processes that hold the devices, as text."""
        notes = [note for note in self._notes.iterdir() if note.name != self._name]
        names = sorted(note.name for note in notes if _lives(note))
        return ", ".join(names) or "another process on the same devices"

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        self._write_note()
        try:
            yield
        finally:
            self._note().unlink(missing_ok=True)

    def _make_files(self) -> None:
        self._notes.mkdir(parents=True, exist_ok=True)
        for file in (self._turn, self._want):
            file.touch(0o600)

    def _write_note(self) -> None:
        """Record this process for :meth:`holders`. It does not wait for disk space: without a note
        the process is not named.
        """
        try:
            self._note().write_text(str(os.getpid()))
        except OSError as error:
            if not is_full(error, self._notes):
                raise

    def _note(self) -> Path:
        return self._notes / self._name


def _lives(note: Path) -> bool:
    """Whether the process that wrote ``note`` is alive; a killed one could not remove it."""
    try:
        os.kill(int(note.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield file
    finally:
        os.close(file)
