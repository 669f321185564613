"""Creates the environment and installs into it, with uv or pip; needs only the standard library."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("ASTRAFLOW_VENV") or ROOT / ".venv").absolute()
PYTHON = VENV / "bin" / "python"
PIP = (str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input")
LOG = VENV / "install.log"
CONSTRAINTS = ROOT / "constraints.txt"
UV = "uv"


class Failure(Exception):
    """Something that the reader can fix; its text says how."""


def exit_with(main: Callable[[list[str]], int], interrupted: str = "interrupted") -> NoReturn:
    """End with the exit code of ``main``: 2 for a :class:`Failure`, whose text is printed, and 130 for an interrupt."""
    try:
        sys.exit(main(sys.argv[1:]))
    except Failure as failure:
        print(failure, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"\n{interrupted}", file=sys.stderr)
        sys.exit(130)


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
    if _with_uv(PYTHON, args) != 0:
        pip("install", "--no-compile", *args)


def install_into(python: Path, *args: str) -> int:
    """The same into any environment, which may lack pip; returns the exit code of the installer."""
    code = _with_uv(python, args)
    if code is not None:
        return code
    return _logged((*PIP, "--python", str(python), "install", "--no-compile", *args))


def _with_uv(python: Path, args: Sequence[str]) -> int | None:
    """uv's exit code; ``None`` where uv cannot be had, or cannot do what pip's settings say."""
    uv_settings = _from_source("runtime/src/astraflow_runtime/launch/uv_settings.py")
    variables = uv_settings.translated(_printed(*PIP, "config", "list"))
    if variables is None or _logged((*PIP, "install", "-c", str(CONSTRAINTS), UV)):
        return None
    constraints = uv_settings.constraints_of(variables)
    uv = str(VENV / "bin" / UV)
    code = _logged((uv, "pip", "install", "--python", str(python), *constraints, *args), variables)
    if code and python == PYTHON:
        print(f"uv could not install them ({show(LOG)} says why); pip does")
    return code


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
