"""How commands find a run and read its directory."""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from typing import Any

from astraflow_core.errors import UserError

RUNS = "runs"
"""The folder in which runs are found by name: the default of ``[run] directory``."""
_MARKS = ("config.toml", "dataflow.json", "summary.json")
"""A folder with any of these files is a run directory."""
_LISTED = 3


def add_run(container: argparse._ActionsContainer) -> None:
    """``--run``, the same for every command about a run; :func:`find_run` takes what it holds."""
    if isinstance(container, argparse.ArgumentParser):
        container = container.add_argument_group("which run")
    container.add_argument(
        "--run",
        metavar="RUN",
        help=f"path of a run directory, or its name in {RUNS}/; default: the newest in {RUNS}/",
    )


def find_run(
    given: str | None, *, live: bool = False, otherwise: str = "", named_by: str = "--run"
) -> Path:
    """The directory of the run that ``given`` names: a path, or a name in ``runs/``. Without one
    the newest there, which is printed; if ``live``, the newest that has not ended, if there is one.
    Raises :class:`UserError` with similar names; ``otherwise`` is what may be given instead, and
    ``named_by`` the option that names a run.
    """
    if given is None:
        found = newest_first(live)
        if not found:
            raise UserError(
                f"which run? there is none in {RUNS}/ here; give {named_by} RUN, the path of a run directory{otherwise}. "
                f"Those below a folder are listed by `ls -d FOLDER/*/{RUNS}/*`"
            )
        sys.stderr.write(f"run {found[0]}\n")
        return found[0]
    if (folder := run_named(given)) is not None:
        return folder
    raise UserError(
        f"no run {given!r}: it is neither a run directory nor the name of one in {RUNS}/{_suggestion(given)}"
    )


def run_named(given: str) -> Path | None:
    """The run directory that a path or a name in ``runs/`` means; ``None`` if it means none."""
    return next(filter(is_run, (Path(given).expanduser(), Path(RUNS) / given)), None)


def is_run(folder: Path) -> bool:
    """Whether a folder is the directory of a run."""
    return any((folder / mark).is_file() for mark in _MARKS)


def newest_first(live: bool = False) -> list[Path]:
    """The runs in ``runs/``, those that were started last first; if ``live``, those that ended after the others."""

    def age(folder: Path) -> tuple[bool, float, str]:
        times = [file.stat().st_mtime for mark in _MARKS[:2] if (file := folder / mark).is_file()]
        going = live and not (folder / "summary.json").exists()
        return going, max(times, default=0.0), folder.name

    return sorted(filter(is_run, Path(RUNS).glob("*")), key=age, reverse=True)


def _suggestion(given: str) -> str:
    from astraflow_core.suggestions import near

    names = [folder.name for folder in newest_first()]
    if not names:
        return ", which has none"
    if like := near(Path(given).name, names):
        return f"; did you mean {' or '.join(map(repr, like))}?"
    return f"; the newest there: {', '.join(names[:_LISTED])}"


def read_config(run: Path) -> dict[str, Any]:
    """The raw resolved ``config.toml`` of a run; :class:`UserError` if it cannot be read."""
    file = run / "config.toml"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"the run in {run} has no config.toml, which `astraflow run` writes; name a run that `astraflow run` "
            "created"
        ) from error
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(
            f"{file} is not valid TOML: {error}; it was complete when `astraflow run` wrote it; restore it"
        ) from error
