"""The interpreter with the agent clients, made as a user would make one, once for all tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import xxhash

from astraflow_core.config.environments import environments_folder, interpreter_in

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
CREATE_S = 900


def client_interpreter() -> str:
    """Its path. What is installed follows ``requirements.txt``; another list makes another environment."""
    digest = xxhash.xxh3_64_hexdigest(REQUIREMENTS.read_bytes())
    folder = environments_folder() / f"tests-agent-clients-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of the tests may be at it
        done = folder / "made"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder)
            done.touch()
    return str(interpreter_in(folder))


def _make(folder: Path) -> None:
    _run(sys.executable, "-m", "venv", folder)
    python, ours = interpreter_in(folder), Path(sys.executable).with_name("uv")
    if not ours.exists():
        _run(
            python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", REQUIREMENTS
        )
        return
    _run(ours, "pip", "install", "-q", "--python", python, "-r", REQUIREMENTS)


def _run(*command: str | Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CREATE_S, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
