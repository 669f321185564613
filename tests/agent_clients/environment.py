"""What the agent clients need, made as a user would make it, once for all tests: an interpreter, a program of npm."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import xxhash

from astraflow_core.config.environments import environments_folder, interpreter_in

CLIENTS = Path(__file__).with_name("requirements.txt")
ORACLES = Path(__file__).with_name("oracles.txt")
CREATE_S = 900


@dataclass(frozen=True)
class NpmProgram:
    """A program of a package of npm."""

    package: str
    version: str
    name: str


PI = NpmProgram("@mariozechner/pi-coding-agent", "0.73.1", "pi")
CLAUDE_CODE = NpmProgram("@anthropic-ai/claude-code", "2.1.330", "claude")
CODEX = NpmProgram("@openai/codex", "0.169.0", "codex")


def interpreter_with(requirements: Path) -> str:
    """The path of an interpreter with the packages that ``requirements`` lists, all of them; another list makes another one."""
    digest = xxhash.xxh3_64_hexdigest(requirements.read_bytes())
    name = f"tests-agent-{requirements.stem}-{digest}"
    return str(interpreter_in(_made(name, lambda folder: _make(folder, requirements))))


def program_of_npm(program: NpmProgram) -> str:
    """The path of ``program``; the test is skipped where there is no npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")

    def install(folder: Path) -> None:
        folder.mkdir()
        package = f"{program.package}@{program.version}"
        _run(npm, "install", "--loglevel=error", "--no-audit", "--prefix", folder, package)

    folder = _made(f"tests-{program.name}-{program.version}", install)
    return str(folder / "node_modules" / ".bin" / program.name)


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


def _make(folder: Path, requirements: Path) -> None:
    _run(sys.executable, "-m", "venv", folder)
    python, ours = interpreter_in(folder), Path(sys.executable).with_name("uv")
    listed: tuple[str | Path, ...] = ("--no-deps", "-r", requirements)
    if not ours.exists():
        _run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *listed)
        return
    _run(ours, "pip", "install", "-q", "--python", python, *listed)


def _run(*command: str | Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CREATE_S, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
