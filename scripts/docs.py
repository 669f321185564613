#!/usr/bin/env python3
"""Write the generated pages under docs/ from the code that they describe; `--check` only compares, `--record` records public names.

api.md (public names), the pages below api/ (their descriptions), configuration.md (keys of the core and of every component of this workspace), hooks.md (hooks and
capabilities), modules.md, commands.md and distributions.md are generated whole, and so are the runtime's index of
distributions, and the examples and public modules of the command `plugin`; in processes.md what stands between the two
marks is, and in decisions.md the table of contents and the headings. In the guides, write-a-….md and write-an-….md, the
code blocks below a mark are parts of the files that it names.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import dev
import surface
from pages.api import api
from pages.commands import commands
from pages.configuration import configuration
from pages.decisions import decisions
from pages.distributions import distributions, distributions_table
from pages.example_plugins import example_plugins
from pages.hooks import hooks
from pages.included import with_includes
from pages.markdown import COMMAND
from pages.processes import processes
from pages.public_modules import modules, public_modules_table
from pages.reference import reference

DOCS = dev.ROOT / "docs"
DISTRIBUTIONS = dev.ROOT / "runtime/src/astraflow_runtime/published/distributions.json"
PLUGIN = dev.ROOT / "contrib/commands/plugin/src/astraflow_contrib_plugin"


def pages() -> dict[Path, str]:
    """What each page should hold."""
    mixed, chosen = DOCS / "processes.md", DOCS / "decisions.md"
    guides = {file: file.read_text(encoding="utf-8") for file in sorted(DOCS.glob("write-a*-*.md"))}
    return {
        DOCS / "api.md": api(),
        **{DOCS / "api" / f"{name}.md": text for name, text in reference().items()},
        DOCS / "commands.md": commands(),
        DOCS / "configuration.md": configuration(),
        DOCS / "distributions.md": distributions(),
        DOCS / "hooks.md": hooks(),
        DOCS / "modules.md": modules(),
        DISTRIBUTIONS: distributions_table(),
        PLUGIN / "examples.json": example_plugins(),
        PLUGIN / "public_modules.json": public_modules_table(),
        mixed: processes(mixed.read_text(encoding="utf-8")),
        chosen: decisions(chosen.read_text(encoding="utf-8")),
        **{file: with_includes(text) for file, text in guides.items()},
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
    parser.add_argument(
        "--record",
        metavar="FRAGMENT",
        type=Path,
        help="first record the public names as they are; the file of changelog.d/ that describes the change",
    )
    arguments = parser.parse_args(argv)
    if arguments.record is not None:
        for difference in surface.record(arguments.record):
            print(f"recorded: {difference}")
    found = stale()
    for file, text in found.items():
        name = file.relative_to(dev.ROOT) if file.is_relative_to(dev.ROOT) else file
        if arguments.check:
            print(f"{name} is stale; `{COMMAND}` fixes it", file=sys.stderr)
        else:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if arguments.check and found else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except dev.Failure as failure:
        print(failure, file=sys.stderr)
        sys.exit(2)
