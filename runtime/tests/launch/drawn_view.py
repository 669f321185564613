"""A process that draws the live view of made-up states on its terminal, as it is told on a descriptor."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from launch_support import parsed, status_of

from astraflow_core.protocols.launcher import ProcessState
from astraflow_runtime.launch.view.views import make_view

PROCESSES = [
    ProcessState("dataflow", 1, None),
    *(ProcessState(f"raas-{index}", 2 + index, None) for index in range(3)),
    ProcessState("trainer-solver", 9, None),
]


def main(table: str, directory: str, orders: int, answers: int) -> None:
    """Run the commands ``show UPDATES``, ``say TEXT`` and ``close``."""
    header = f"run fake: 20 steps\n  directory  {directory}\n"
    view = make_view(parsed(json.loads(table)), None, sys.stdout, Path(directory), header)
    for line in os.fdopen(orders):
        what, _, rest = line.strip().partition(" ")
        if what == "show":
            view.show(status_of(int(rest)), PROCESSES)
        elif what == "say":
            view.say(rest)
        else:
            view.close()
        os.write(answers, b".")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
