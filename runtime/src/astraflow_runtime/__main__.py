"""``python -m astraflow_runtime`` is the command ``astraflow``, with the interpreter that runs it."""

from __future__ import annotations

import sys

from astraflow_runtime.cli import main

sys.exit(main())
