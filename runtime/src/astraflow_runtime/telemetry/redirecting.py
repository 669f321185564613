"""Redirects the output of a command and its children to a file, so that only the command's own
lines are shown.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Terminal:
    """The original output of this process."""

    out: TextIO
    err: TextIO


@contextlib.contextmanager
def said_to(log: Path) -> Iterator[Terminal]:
    """Redirect the output of this process and its children to a file within the context; write to
    the :class:`Terminal` what the user should see.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    try:
        with (
            os.fdopen(os.dup(kept[0]), "w", errors="backslashreplace") as out,
            os.fdopen(os.dup(kept[1]), "w", errors="backslashreplace") as err,
            log.open("a") as file,
            redirect_stdout(file),
            redirect_stderr(file),
        ):
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield Terminal(out, err)
    finally:
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
