"""What is checked: an installed distribution, or one that is built from its source folder."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from astraflow_contrib_plugin.checking.programs import TookTooLong, run_module
from astraflow_core.errors import UserError
from astraflow_core.installed.discovery import find_plugins
from astraflow_core.suggestions import did_you_mean

_DEADLINE_S = 300.0
_MOST_LINES = 4
_BACKEND_ENDS = "[end of output]"
"""What pip prints after the output of a build backend, and before its own messages."""


@dataclass(frozen=True)
class CheckedTarget:
    """``site`` is the folder into which a source folder was installed for the check, ``None`` for what is installed
    already; ``source`` is the folder with the ``pyproject.toml``, if there is one."""

    name: str
    version: str
    metadata: metadata.Distribution
    site: Path | None
    source: Path | None

    @property
    def tests(self) -> Path | None:
        """The folder of its tests, if there is one."""
        folder = self.source / "tests" if self.source is not None else None
        return folder if folder is not None and folder.is_dir() else None


def resolve(text: str, work: Path) -> CheckedTarget:
    """What ``text`` means; ``work`` is an empty folder for the check. Raises :class:`UserError`."""
    folder = Path(text)
    if folder.is_dir() or "/" in text or text.startswith("."):
        return _built(folder.resolve(), work / "site")
    return _installed(text)


def _built(folder: Path, site: Path) -> CheckedTarget:
    file = folder / "pyproject.toml"
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{file} does not exist; give the folder of a plugin, or the name of an installed distribution"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if (
        PathFinder.find_spec("pip") is None
    ):  # importlib.util's makes setuptools believe that pip runs here
        raise UserError(
            "this interpreter has no pip, which builds the plugin: python -m ensurepip; or install the plugin, and "
            "give the name of its distribution"
        )
    _install(folder, site, _backend(project))
    found = list(metadata.distributions(path=[str(site)]))
    if len(found) != 1:
        raise UserError(f"{folder}: expected one distribution, built {len(found)}")
    return CheckedTarget(found[0].name, found[0].version, found[0], site, folder)


def _backend(project: dict[str, Any]) -> str:
    """Top-level module of the build backend."""
    system = project.get("build-system", {})
    return str(system.get("build-backend", "setuptools")).partition(".")[0].partition(":")[0]


def _install(folder: Path, site: Path, backend: str) -> None:
    here = ["--no-build-isolation"] if importlib.util.find_spec(backend) is not None else []
    arguments = ["install", "--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check"]
    try:
        ended = run_module(
            "pip",
            [*arguments, *here, "--target", str(site), str(folder)],
            folder,
            None,
            _DEADLINE_S,
        )
    except TookTooLong as error:
        raise UserError(f"pip install {folder}: {error}") from error
    if ended.code:
        lines = [line.strip() for line in ended.lines]
        end = lines.index(_BACKEND_ENDS) if _BACKEND_ENDS in lines else len(lines)
        last = "\n".join(lines[max(end - _MOST_LINES, 0) : end])
        raise UserError(f"{folder} cannot be built; `pip install {folder}` says:\n{last}")


def _installed(text: str) -> CheckedTarget:
    plugins = find_plugins()
    name = next((p.distribution for p in plugins if p.name == text), text)
    try:
        found = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        known = {each for p in plugins for each in (p.name, p.distribution)}
        raise UserError(
            f"no distribution {text!r} is installed{did_you_mean(text, known)}; `astraflow plugins` lists them; for a "
            "folder give its path"
        ) from None
    return CheckedTarget(found.name, found.version, found, None, _editable_source(found))


def _editable_source(distribution: metadata.Distribution) -> Path | None:
    """The folder of an editable installation."""
    try:
        told = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    url = urlsplit(str(told.get("url", "")))
    editable = told.get("dir_info", {}).get("editable")
    return Path(unquote(url.path)) if editable and url.scheme == "file" else None
