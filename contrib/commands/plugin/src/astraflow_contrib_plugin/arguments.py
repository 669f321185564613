"""What ``plugin check`` and ``plugin bench`` have in common: the plugin that they are about, and their options."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.errors import UserError

if TYPE_CHECKING:
    from astraflow_contrib_plugin.checking.target import CheckedTarget


def add_common(
    parser: argparse.ArgumentParser, deadline_s: float, of_what: str, as_json: str
) -> None:
    """Declare the plugin, ``--deadline``, the most seconds for ``of_what``, and ``--json``, which prints ``as_json``."""
    parser.add_argument(
        "target",
        metavar="PATH|DIST",
        nargs="?",
        default=".",
        help="folder with a pyproject.toml, or an installed distribution or plugin; default: this folder",
    )
    parser.add_argument("--json", action="store_true", help=f"print {as_json} as JSON")
    parser.add_argument(
        "--deadline",
        metavar="SECONDS",
        type=_seconds,
        default=deadline_s,
        help=f"most seconds for {of_what}; default: {deadline_s:g}",
    )


@contextmanager
def examined(arguments: argparse.Namespace) -> Iterator[tuple[CheckedTarget, Path]]:
    """The plugin that the arguments name, built if it is a folder, and a temporary folder that is removed afterwards.
    Raises :class:`UserError`."""
    from astraflow_contrib_plugin.checking.target import resolve

    work = Path(tempfile.mkdtemp(prefix="astraflow-plugin-")).resolve()
    try:
        yield resolve(arguments.target, work), work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UserError(f"--deadline {text}: expected seconds above 0")
    return value
