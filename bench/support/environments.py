"""Virtual environments of the compared systems, created once and kept in the cache folder."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

from astraflow_core.config.environments import cache_folder
from bench.support.processes import ROOT

INSTALL_S = 1800.0
CONSTRAINTS = ROOT / "constraints.txt"


def environment(name: str, requirements: Path) -> Path:
    """The interpreter of an environment with ``requirements`` (every one pinned) and nothing of ours, all
    held to ``constraints.txt``; made again if these files or our Python changed."""
    read = [requirements.read_bytes(), CONSTRAINTS.read_bytes(), sys.version.encode()]
    digest = hashlib.sha256(b"\0".join(read)).hexdigest()[:16]
    folder = cache_folder() / "bench" / f"{name}-{digest}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if done.exists():
        return python
    print(f"making the environment of {name!r} in {folder}, once", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "-c", str(CONSTRAINTS), "-r", str(requirements)],
    ):  # fmt: skip
        subprocess.run(
            command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=INSTALL_S
        )
    done.write_text(f"{time.monotonic() - began:.1f}\n")
    return python
