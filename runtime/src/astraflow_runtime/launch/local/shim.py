"""``python shim.py PARENT COMMAND…``: become COMMAND, and be killed by the kernel when PARENT dies.

A separate program, because code between fork and exec in a process with threads may deadlock.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
SIGKILL = 9
"""On Linux. To import ``signal`` takes longer than all the rest of this program."""


def main() -> None:
    """``python -m … PARENT_PID COMMAND …``: ask for SIGKILL at the parent's death, become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the launcher exited while it started this process")
    try:
        os.execvp(command[0], command)  # noqa: S606 (what this program is for)
    except OSError as error:
        sys.stderr.write(f"astraflow: cannot start {command[0]!r}: {error.strerror}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
