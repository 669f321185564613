#!/usr/bin/env python3
"""Run a tool of the environment, in the version that constraints.txt names: ``tool.py ruff check FILE``."""

from __future__ import annotations

import os
import sys

import dev


def main(arguments: list[str]) -> None:
    """Become the tool."""
    dev.setup("test")
    sys.stdout.flush()
    os.execv(dev.PYTHON, [str(dev.PYTHON), "-m", *arguments])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except dev.Failure as failure:
        print(failure, file=sys.stderr)
        sys.exit(2)
