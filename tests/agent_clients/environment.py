"""What the agent clients need, made as a user would make it, once for all tests: an interpreter, a program of npm."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import xxhash

from astraflow_core.config.environments import environments_folder, interpreter_in

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
CREATE_S = 900


PI = ("@mariozechner/pi-coding-agent", "0.73.1")


def client_interpreter() -> str:
    """The path of the interpreter. What is installed follows ``requirements.txt``; another list makes another one."""
    digest = xxhash.xxh3_64_hexdigest(REQUIREMENTS.read_bytes())
    return str(interpreter_in(_made(f"tests-agent-clients-{digest}", _make)))


def coding_agent() -> str | None:
    """The path of pi, a coding agent for the command line; ``None`` where there is no npm."""
    npm, (package, version) = shutil.which("npm"), PI
    if npm is None:
        return None

    def install(folder: Path) -> None:
        folder.mkdir()
        _run(npm, "install", "--silent", "--no-audit", "--prefix", folder, f"{package}@{version}")

    return str(_made(f"tests-pi-{version}", install) / "node_modules" / ".bin" / "pi")


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name; made if it is not, or not as a whole."""
    folder = environments_folder() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of the tests may be at it
        done = folder / "made"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            done.touch()
    return folder


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
