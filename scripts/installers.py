"""Makes the environment and installs into it, with uv or pip; needs the standard library alone."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("ASTRAFLOW_VENV") or ROOT / ".venv").absolute()
PYTHON = VENV / "bin" / "python"
PIP = (str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input")
LOG = VENV / "install.log"
CONSTRAINTS = ROOT / "constraints.txt"
UV = "uv"


class Failure(Exception):
    """Something that the reader can fix; its text says how."""


def create() -> None:
    """Make the environment if there is none."""
    if PYTHON.exists() and (VENV / "pyvenv.cfg").exists():
        return
    missing = [m for m in ("venv", "ensurepip") if importlib.util.find_spec(m) is None]
    if missing:
        raise Failure(
            f"{sys.executable} lacks the standard modules {' and '.join(missing)}.\n"
            "On Debian and Ubuntu: apt-get install "
            f"python{sys.version_info.major}.{sys.version_info.minor}-venv; "
            "elsewhere install Python from python.org or a version manager. Then call this again."
        )
    print(f"creating {show(VENV)} with Python {sys.version.split()[0]}")
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", VENV],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failure(f"python -m venv {show(VENV)} failed:\n{done.stdout.strip()}")


def install(*args: str) -> None:
    """Install with uv, which takes a third of pip's time; with pip where uv cannot be had or fails."""
    uv_settings = _from_source("runtime/src/astraflow_runtime/launch/uv_settings.py")
    variables = uv_settings.translated(_printed(*PIP, "config", "list"))
    if variables is not None:
        wanted = (*PIP, "install", "-c", str(CONSTRAINTS), UV)
        constraints = uv_settings.constraints_of(variables)
        uv = str(VENV / "bin" / UV)
        command = (uv, "pip", "install", "--python", str(PYTHON), *constraints, *args)
        if _logged(wanted) == 0 and _logged(command, variables) == 0:
            return
        print(f"uv could not install them ({show(LOG)} says why); pip does")
    pip("install", "--no-compile", *args)


def _from_source(path: str) -> ModuleType:
    """A module of a package that is not installed yet; it needs the standard library alone."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _printed(*command: str) -> str:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout


def pip(*args: str) -> None:
    """Call the environment's pip."""
    if _logged((*PIP, *args)):
        lines = LOG.read_text(encoding="utf-8").splitlines()
        tail = [line for line in lines if line.strip() and not line.startswith("WARNING")][-15:]
        raise Failure(
            "pip failed; its last lines:\n  "
            + "\n  ".join(tail)
            + f"\nThe whole log: {show(LOG)}. If a download failed, check the network and the "
            "index that `pip config list` shows; if versions conflict, a pyproject.toml asks for "
            "what constraints.txt does not allow. Then call this again: what is installed stays."
        )


def _logged(command: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
    """Call an installer, with environment ``variables`` beside ours; its output goes to a log, the last line
    to a terminal. Returns its exit code."""
    live = sys.stdout.isatty()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    with process, LOG.open("a", encoding="utf-8") as log:
        try:
            for line in process.stdout:
                log.write(line)
                if live and not line.startswith("WARNING"):
                    print("\r\033[K  " + line.strip()[:76], end="", flush=True)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    if live:
        print("\r\033[K", end="", flush=True)
    return process.returncode


def precompile(folders: list[Path]) -> None:
    """Byte-compile what our modules import, by importing them once."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with LOG.open("a", encoding="utf-8") as log:
        subprocess.run(
            [PYTHON, ROOT / "scripts" / "precompile.py", *(folder / "src" for folder in folders)],
            cwd=VENV,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=300,
            check=False,  # a module that cannot be imported fails where it is used, with its name
        )


def show(path: Path) -> str:
    """The path as it is called from the checkout."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
