#!/usr/bin/env python3
"""Write the generated pages under docs/ from the code that they describe; `--check` only compares.

configuration.md (keys of the core and of every component of this workspace), hooks.md (hooks and
capabilities) and commands.md are generated whole; in processes.md what stands between the two marks is. In write-a-plugin.md
the code blocks below a mark are parts of the files that it names.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import dev
from pages.commands import commands
from pages.configuration import configuration
from pages.hooks import hooks
from pages.included import with_includes
from pages.markdown import COMMAND
from pages.processes import processes

DOCS = dev.ROOT / "docs"


def pages() -> dict[Path, str]:
    """What each page should hold."""
    mixed, guide = DOCS / "processes.md", DOCS / "write-a-plugin.md"
    return {
        DOCS / "commands.md": commands(),
        DOCS / "configuration.md": configuration(),
        DOCS / "hooks.md": hooks(),
        mixed: processes(mixed.read_text(encoding="utf-8")),
        guide: with_includes(guide.read_text(encoding="utf-8")),
    }


def stale() -> dict[Path, str]:
    """The pages that hold something else, with what they should hold."""
    return {
        file: text
        for file, text in pages().items()
        if not file.exists() or file.read_text(encoding="utf-8") != text
    }


def main(argv: list[str]) -> int:
    """Write the pages, or with `--check` say which are stale; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/docs.py", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 if a page is stale"
    )
    arguments = parser.parse_args(argv)
    found = stale()
    for file, text in found.items():
        name = f"docs/{file.name}"
        if arguments.check:
            print(f"{name} is stale; `{COMMAND}` mends it", file=sys.stderr)
        else:
            file.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if arguments.check and found else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except dev.Failure as failure:
        print(failure, file=sys.stderr)
        sys.exit(2)
