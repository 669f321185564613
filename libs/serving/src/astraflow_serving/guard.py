"""A small process that runs a server's command and ends it, with all its workers, when the engine host exits.

Started as ``python -m astraflow_serving.guard COMMAND …`` in its own process group. A server's own
processes end each other in most cases, but not if the first of them is ended before it listens. The command may
be of another interpreter, which needs nothing of ours for this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from astraflow_wire.host.parent import end_with


def main() -> int:
    """Run the command to its end, and end as it ended."""
    parent = os.getppid()
    server = subprocess.Popen(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda number, frame: server.terminate())
    end_with(parent)  # SIGTERM first, and soon SIGKILL to the whole group
    code = server.wait()
    if os.getppid() != parent and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    if code < 0:
        if -code == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
