"""Separate interpreters for roles whose backend cannot share ours: where they are, what they need."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

SCHEME = "env:"
ATTRIBUTE = "ASTRAFLOW_ENVIRONMENT"
"""What a manifest sets if the backend of its plugin cannot share our interpreter."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """How to make an interpreter in which the backend of a plugin runs.

    A manifest names a factory of it, ``ASTRAFLOW_ENVIRONMENT = "module:attribute"``, called as
    ``factory(extra)`` with the extra that the user asked for, or ``None`` to choose by the machine; it
    raises :class:`astraflow_core.errors.UserError` for an extra that it does not know. A plugin without
    a factory needs its ``[runtime]`` extra and nothing else.

    ``extra`` is installed; ``constraints`` are files of versions that were tested together; the
    distributions in ``remove`` are uninstalled again, because they break the backend on this kind of
    machine; last, ``finish`` is run there, as ``python -m MODULE``.
    """

    extra: str = "runtime"
    constraints: tuple[Path, ...] = ()
    remove: tuple[str, ...] = ()
    finish: str = ""


def cache_folder() -> Path:
    """The folder of what can be downloaded or created again: ``ASTRAFLOW_CACHE``, else the user's cache folder."""
    given = os.environ.get("ASTRAFLOW_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "astraflow"


def environments_folder() -> Path:
    """Where ``astraflow env create`` creates environments: ``ASTRAFLOW_ENVIRONMENTS``, else in the cache."""
    given = os.environ.get("ASTRAFLOW_ENVIRONMENTS")
    return Path(given).expanduser().absolute() if given else cache_folder() / "envs"


def environment_folder(name: str) -> Path:
    """The folder of the environment ``name``; raises :class:`ValueError` for an invalid name."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a name for an environment: letters, digits, '.', '_' and '-', a letter or "
            "digit first"
        )
    return environments_folder() / name


def interpreter_in(folder: Path) -> Path:
    """The interpreter of the environment in ``folder``."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def interpreter(python: str) -> str:
    """``python`` of a role's table as a path or command: ``env:NAME`` is the environment of that
    name, whether or not it exists yet."""
    if not python.startswith(SCHEME):
        return python
    return str(interpreter_in(environment_folder(python.removeprefix(SCHEME))))


def environment_of(python: str) -> str | None:
    """The name of the environment whose interpreter ``python`` is, if it is one of ours."""
    path = Path(python)
    folder = path.parent.parent
    if folder.parent != environments_folder() or path != interpreter_in(folder):
        return None
    return folder.name
