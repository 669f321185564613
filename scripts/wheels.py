"""Builds distributions as users get them and installs them into an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

import dev

EARLIEST = 315_532_800
"""The first date that a wheel can have: 1980."""

_BUILD = """
import os, sys, tarfile
from pathlib import Path
from flit_core import buildapi

out, work = Path(sys.argv[1]), Path(sys.argv[2])
for package in sys.argv[3:]:
    os.chdir(package)
    sdist = out / buildapi.build_sdist(str(out))
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    os.chdir(work / sdist.name.removesuffix(".tar.gz"))
    print(package, sdist.name, buildapi.build_wheel(str(out)), sep="\\t")
"""


def execute(*command: str, timeout: float = 240, cwd: Path | None = None, **variables: str) -> str:
    """Run a command without this process's Python settings; its output is the failure's message."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ASTRAFLOW"))}
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise dev.Failure(f"{command[:4]} … took longer than {timeout:.0f} s") from error
    if done.returncode:
        raise dev.Failure(f"{command[:4]} …\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def build(
    packages: Iterable[Path], out: Path, work: Path, epoch: int = EARLIEST
) -> dict[Path, tuple[Path, Path]]:
    """Folder of a package → (sdist, wheel built from that sdist), all in ``out``; ``epoch`` is their date, in seconds
    since 1970."""
    folders = {str(package): package for package in packages}
    command = (sys.executable, "-c", _BUILD, str(out), str(work), *folders)
    printed = execute(*command, SOURCE_DATE_EPOCH=str(epoch))
    rows = [line.split("\t") for line in printed.splitlines()]
    return {folders[path]: (out / sdist, out / wheel) for path, sdist, wheel in rows}


def clean_environment(folder: Path, wheels: Path, *requirements: str) -> Path:
    """A new environment with `requirements` from `wheels` and, for others, pip's ordinary index."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install(python, wheels, *requirements)
    return python


def install(python: Path, wheels: Path, *requirements: str) -> None:
    """The same into an environment that there is."""
    execute(
        *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"),
        *("--no-compile", "--no-input", "--disable-pip-version-check"),
        *("-c", str(dev.CONSTRAINTS), "--find-links", str(wheels), *requirements),
    )
