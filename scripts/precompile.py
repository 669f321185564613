"""Import every module of the given source folders once, so that its byte code is written, and that of what it imports.

Compiling all that pip installs takes three times as long, and compiling nothing lets the processes of the first run
each do it at the same moment.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path


def modules(source: Path) -> Iterator[str]:
    """The modules in a source folder that can be imported without acting."""
    for file in sorted(source.glob("*/**/*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        if not {"scaffold", "testing", "__main__"} & set(parts):
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        for name in modules(Path(folder)):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
