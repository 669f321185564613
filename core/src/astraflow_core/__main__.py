"""``python -m astraflow_core`` is the command ``astraflow``, with the interpreter that runs it."""

from __future__ import annotations

import sys

from astraflow_core.cli import main

sys.exit(main())
