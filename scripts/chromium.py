"""A Chromium that tests drive: the one on PATH, or that of the distribution, installed once."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
INSTALL = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
INSTALL_S = 170


def chromium() -> str:
    """The path of the program; a failure names what to install."""
    with (_own_folder() / "chromium.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        found = _on_path()
        if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            for command in (["apt-get", "update", "-q"], INSTALL):
                subprocess.run(
                    command, env=environment, timeout=INSTALL_S, check=False, capture_output=True
                )
            found = _on_path()
    assert found is not None, (
        f"these tests need a Chromium on PATH; install it: {' '.join(INSTALL)} (as root, on Debian)"
    )
    return found


def _own_folder() -> Path:
    """A folder that other users cannot write to, the same for all tests of a user."""
    cache = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(cache) if cache else Path.home() / ".cache") / "astraflow-tests"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _on_path() -> str | None:
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
