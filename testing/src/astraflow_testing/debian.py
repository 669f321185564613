"""Programs of Debian's packages for tests, unpacked into a folder: nothing is installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

INSTALL_S = 300
FOLDERS = ("usr/bin", "usr/sbin", "bin", "sbin")


def unpacked(base: Path, *packages: str) -> Path:
    """The folder below ``base`` in which the packages are, as if it were ``/``; tests in other processes that name
    the same packages share it. Raises :class:`AssertionError` if a package cannot be fetched with apt-get."""
    folder = base / ("astraflow-debian-" + "+".join(packages))
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not (folder / "root").exists():
            _unpack(folder, packages)
    return folder / "root"


def program(name: str) -> str | None:
    """The program of this name on PATH, or where administrators have theirs."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _unpack(folder: Path, packages: Sequence[str]) -> None:
    said = ""
    for command in (
        ["apt-get", "download", "-q", *packages],
        ["apt-get", "update", "-q"],  # without root it fails, and the lists that are there serve
        ["apt-get", "download", "-q", *packages],
    ):
        if len(list(folder.glob("*.deb"))) < len(packages):
            done = subprocess.run(
                command, cwd=folder, timeout=INSTALL_S, check=False, capture_output=True, text=True
            )
            said = done.stderr
    files = list(folder.glob("*.deb"))
    assert len(files) >= len(packages), (
        f"these tests need the packages {', '.join(packages)} of Debian: {said}"
    )
    for file in files:
        subprocess.run(["dpkg", "-x", file, folder / "new"], timeout=INSTALL_S, check=True)
        file.unlink()
    (folder / "new").rename(folder / "root")
