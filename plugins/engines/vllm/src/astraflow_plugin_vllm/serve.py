"""``vllm serve`` under a small process that ends it, with all its workers, when the engine host is gone.

Started as ``python -m astraflow_plugin_vllm.serve serve MODEL …`` in a process group of its own. vLLM's
processes end each other in most cases, but not if the first of them is ended before it listens.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from astraflow_core.telemetry.parent import end_with


def main() -> int:
    """Run vLLM's command to its end, and end as it ended."""
    parent = os.getppid()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", *sys.argv[1:]]
    server = subprocess.Popen(command)
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
