"""Environments with the released distributions and no other AstraFlow code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from installers import CONSTRAINTS, LOG, Failure, install_into
from own_tools import make

from releasing.stamping import Member

PYTHONS = ("3.11", "3.12", "3.13")


class NoWheels(Failure):
    """Something that a distribution needs has no wheel for an interpreter."""


def find(version: str) -> Path | None:
    """An interpreter of this machine, in a version such as ``3.12``."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return Path(sys.executable)
    command = [f"python{version}", "-c", "import sys; print(sys.executable)"]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYENV_VERSION": version},  # for a shim of pyenv, which asks for one
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError:
        return None
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def requirements(
    chosen: Iterable[Member], built: Mapping[str, tuple[Path, Path]], backends: bool
) -> list[str]:
    """Our distributions by their files, so that none of them can come from an index; with ``backends`` those of
    the quickstart bring theirs."""
    found = []
    for member in chosen:
        extra = "[runtime]" if backends and member.quickstart and "runtime" in member.extras else ""
        found.append(f"{member.name}{extra} @ {built[member.name][1].resolve().as_uri()}")
    return found


def create(folder: Path, python: Path, wanted: Sequence[str], *options: str) -> Path:
    """A new environment with ``wanted``, in the versions of constraints.txt unless ``options`` say other ones;
    returns its interpreter."""
    made = make(folder, python)
    install(made, wanted, *options)
    return made


def install(python: Path, wanted: Sequence[str], *options: str) -> None:
    """The same into an environment that there is."""
    before = LOG.stat().st_size if LOG.exists() else 0
    options = options or ("-c", str(CONSTRAINTS))
    if install_into(python, "--only-binary", ":all:", *options, *wanted):
        with LOG.open(encoding="utf-8") as log:
            log.seek(before)
            said = log.read().strip()
        error = (
            NoWheels
            if re.search(r"no (usable |compatible )?wheels?\b|no matching distribution", said, re.I)
            else Failure
        )
        raise error(f"could not be installed together:\n{said[-3000:]}")
