"""Separate interpreters for tools that neither users nor tests need, with every version pinned."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from installers import LOG, VENV, Failure, install_into, show


def interpreter(requirements: Path) -> Path:
    """The interpreter that has what a file of requirements pins; made on the first call, and again when the file changes."""
    folder = VENV / "tools" / requirements.parent.name
    python, stamp = folder / "bin" / "python", folder / "requirements.sha256"
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == key:
        return python
    print(f"installing tools into {show(folder)} …", flush=True)
    make(folder, Path(sys.executable))
    if install_into(python, "-r", str(requirements)):
        raise Failure(
            f"what {show(requirements)} pins could not be installed; {show(LOG)} has the output. Check the network and the "
            "index that `pip config list` shows, then call this again"
        )
    stamp.write_text(key, encoding="utf-8")
    return python


def make(folder: Path, python: Path) -> Path:
    """A new environment of an interpreter, without pip; returns the interpreter in it."""
    command = [str(python), "-m", "venv", "--clear", "--without-pip", str(folder)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise Failure(
            f"`{' '.join(command)}` failed:\n{done.stderr.strip() or done.stdout.strip()}"
        )
    return folder / "bin" / "python"
