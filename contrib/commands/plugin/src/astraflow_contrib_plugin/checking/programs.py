"""Programs that a check runs: without a shell, with a deadline, and with an end of everything that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TAIL = 1 << 14


class TookTooLong(Exception):
    """The program did not end in time and was killed."""


@dataclass(frozen=True, slots=True)
class EndedProgram:
    """Exit code, negative for a signal, and the last lines of both outputs."""

    code: int
    lines: list[str]


def run_module(
    module: str, arguments: Sequence[str], folder: Path, site: Path | None, deadline_s: float
) -> EndedProgram:
    """``python -m module`` in ``folder``, with this interpreter; what ``site`` has comes before what is installed.

    Raises :class:`TookTooLong` after ``deadline_s`` seconds.
    """
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    before = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    paths = [str(site), *before] if site is not None else before
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise TookTooLong(f"it took longer than {deadline_s:g} s and was killed") from None
        finally:
            # Also after Ctrl-C, and what the program itself left running.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        size = output.seek(0, os.SEEK_END)
        output.seek(max(size - _TAIL, 0))
        text = output.read().decode(errors="replace")
    return EndedProgram(code, [line for line in text.splitlines() if line.strip()])
