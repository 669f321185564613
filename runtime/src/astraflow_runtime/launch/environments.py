"""Makes environments: interpreters of their own for roles whose backend cannot share ours.

An environment holds what hosts an engine or a tracker (astraflow-engine-host, astraflow-trackers; for other components
astraflow-runtime) and some plugins, with what their ``[runtime]`` extras bring. Each distribution of ours comes from the
same source as here: an editable installation stays one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind, load_attribute
from astraflow_core.config.environments import (
    ATTRIBUTE,
    PythonEnvironment,
    environment_folder,
    environments_folder,
    interpreter_in,
)
from astraflow_core.errors import DeadlineExceeded, PluginError, UserError
from astraflow_core.installed.discovery import Plugin
from astraflow_core.installed.origins import source_of
from astraflow_core.suggestions import did_you_mean
from astraflow_runtime.launch import uv_settings
from astraflow_runtime.launch.installing import packages_installed
from astraflow_runtime.telemetry.progress import progress

RECORD = "astraflow-environment.json"
LOG = "install.log"
DEADLINE_S = 3600.0
"""Longest that one step (pip, the backend's own) may take."""

_OF_HOSTS = {Kind.ENGINE: "astraflow-engine-host", Kind.TRACKER: "astraflow-trackers"}
_OF_SERVICES = "astraflow-runtime"
_LAST_LINES = 15


@dataclass(frozen=True, slots=True)
class Made:
    """An environment: for which ``plugins``, when and how long it took, its size. ``key`` identifies what
    it was created from; empty while it is incomplete."""

    name: str
    folder: str
    plugins: tuple[str, ...]
    python: str
    seconds: float
    bytes: int
    created: str
    key: str

    @property
    def interpreter(self) -> Path:
        """The interpreter of the environment."""
        return interpreter_in(Path(self.folder))


@dataclass(frozen=True, slots=True)
class _Recipe:
    requirements: tuple[str, ...]
    parts: tuple[PythonEnvironment, ...]
    python: str

    @property
    def key(self) -> str:
        """Changes with everything that decides what is installed."""
        digest = hashlib.sha256(repr((self.requirements, self.parts, self.python)).encode())
        for part in self.parts:
            for file in part.constraints:
                digest.update(file.read_bytes())
        for requirement in self.requirements:
            project = Path(requirement.partition("[")[0]) / "pyproject.toml"
            if project.is_file():
                digest.update(project.read_bytes())
        return digest.hexdigest()


def create(
    name: str,
    plugins: Sequence[str],
    catalog: Catalog,
    extra: str | None = None,
    python: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Made:
    """Make the environment ``name`` for the plugins of those names, or leave it if it is as it would be
    made. ``python`` is the interpreter to base it on (ours). Raises :class:`UserError` with the last lines
    of what failed; a folder that was left half made is made again by the next call."""
    folder = _folder(name)
    recipe = _recipe([catalog.plugin(plugin) for plugin in plugins], extra, python)
    with _locked(folder):
        there = _read(folder)
        if there is not None and there.key == recipe.key and there.interpreter.exists():
            say(f"environment {name!r} is up to date: {there.interpreter}")
            return there
        if there is not None and set(there.plugins) != set(plugins):
            raise UserError(
                f"environment {name!r} belongs to {' and '.join(there.plugins)}: choose another name, or run "
                f"`astraflow env remove {name}` first"
            )
        if there is not None:
            say(f"environment {name!r} was created from other sources or versions: recreating it")
        began = time.monotonic()
        (folder / RECORD).unlink(missing_ok=True)
        _make(folder, recipe, say)
        made = Made(
            name=name,
            folder=str(folder),
            plugins=tuple(plugins),
            python=_version(interpreter_in(folder)),
            seconds=round(time.monotonic() - began, 1),
            bytes=_size(folder),
            created=time.strftime("%Y-%m-%d %H:%M:%S"),
            key=recipe.key,
        )
        (folder / RECORD).write_text(json.dumps(asdict(made), indent=2) + "\n", encoding="utf-8")
        say(f"made in {made.seconds:.0f} s, {made.bytes / 2**30:.1f} GiB: {made.interpreter}")
        return made


def environments() -> list[Made]:
    """Every environment in name order; one that is not whole has no plugins and no key."""
    base = environments_folder()
    found = sorted(path for path in base.iterdir() if path.is_dir()) if base.is_dir() else []
    return [
        _read(folder) or Made(folder.name, str(folder), (), "", 0.0, _size(folder), "", "")
        for folder in found
    ]


def remove(name: str) -> int:
    """Delete an environment; the bytes that it held. Raises :class:`UserError` if there is none."""
    folder = _folder(name)
    if not folder.is_dir():
        names = [made.name for made in environments()]
        raise UserError(
            f"there is no environment {name!r}{did_you_mean(name, names)} "
            f"(existing environments: {', '.join(names) or 'none'})"
        )
    with _locked(folder):
        size = _size(folder)
        shutil.rmtree(folder)
    return size


def _folder(name: str) -> Path:
    try:
        return environment_folder(name)
    except ValueError as error:
        raise UserError(str(error)) from error


def _recipe(plugins: Sequence[Plugin], extra: str | None, python: str | None) -> _Recipe:
    requirements: list[str] = []
    parts: list[PythonEnvironment] = []
    chosen: list[tuple[metadata.Distribution, str]] = []
    for plugin in plugins:
        if not plugin.healthy or plugin.metadata is None:
            reason = plugin.problem or "it does not belong to a distribution"
            raise PluginError(f"no environment for plugin {plugin.name!r}: {reason}")
        factory = getattr(plugin.module, ATTRIBUTE, None)
        part = PythonEnvironment() if factory is None else load_attribute(factory)(extra)
        if factory is None and extra is not None:
            part = PythonEnvironment(extra)
        offered = plugin.metadata.metadata.get_all("Provides-Extra") or []
        if part.extra not in offered and (factory is not None or extra is not None):
            raise UserError(
                f"plugin {plugin.name!r} has no extra {part.extra!r} (it has: "
                f"{', '.join(offered) or 'none'})"
            )
        chosen.append((plugin.metadata, part.extra if part.extra in offered else ""))
        parts.append(part)
    kinds = {kind for plugin in plugins for kind, _ in plugin.components}
    hosts = {_OF_HOSTS.get(kind, _OF_SERVICES) for kind in kinds} or {_OF_HOSTS[Kind.ENGINE]}
    host = metadata.distribution(hosts.pop() if len(hosts) == 1 else _OF_SERVICES)
    for library in [*_ours_needed_by([host, *(plugin for plugin, _ in chosen)]), host]:
        requirements += source_of(library, "")
    for distribution, wanted_extra in chosen:
        requirements += source_of(distribution, wanted_extra)
    return _Recipe(tuple(requirements), tuple(parts), python or sys.executable)


def _ours_needed_by(distributions: Sequence[metadata.Distribution]) -> list[metadata.Distribution]:
    """The libraries of this project that the distributions need, directly or not, in name order: what comes from a
    checkout is in no index, so that pip must be told about each."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(distributions)
    while waiting:
        for line in waiting.pop().requires or ():
            name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
            if name.startswith("astraflow-") and "extra ==" not in line and name not in found:
                found[name] = metadata.distribution(name)
                waiting.append(found[name])
    named = {distribution.metadata["Name"] for distribution in distributions}
    return [found[name] for name in sorted(found.keys() - named)]


def _make(folder: Path, recipe: _Recipe, say: Callable[[str], None]) -> None:
    if shutil.which(recipe.python) is None:
        raise UserError(
            f"there is no interpreter {recipe.python!r}; select another one with --python"
        )
    own = str(interpreter_in(folder))
    say(f"creating {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f".{folder.name}.log")
    log.write_text("", encoding="utf-8")
    _step(log, "the creation of the environment", recipe.python, "-m", "venv", "--clear", folder)
    pip = (own, "-m", "pip", "--disable-pip-version-check", "--no-input")
    constraints = [
        word for part in recipe.parts for file in part.constraints for word in ("-c", str(file))
    ]
    say("installing, which can take some minutes")
    if not _installed_by_uv(log, pip, own, [*constraints, *recipe.requirements], say):
        _step(log, "pip", *pip, "install", "--no-compile", *constraints, *recipe.requirements)
    surplus = sorted({name for part in recipe.parts for name in part.remove})
    if surplus:
        _step(log, "pip", *pip, "uninstall", "--yes", *surplus)
    for part in recipe.parts:
        if part.finish:
            say(f"running {part.finish} in it")
            _step(log, f"python -m {part.finish}", own, "-m", part.finish)
    log.replace(folder / LOG)


def _installed_by_uv(
    log: Path, pip: Sequence[str], own: str, arguments: Sequence[str], say: Callable[[str], None]
) -> bool:
    """Whether uv, if it is here and means the same as pip with its settings, has installed ``arguments``."""
    uv = uv_settings.program()
    if uv is None:
        return False
    listed = subprocess.run(
        [*pip, "config", "list"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    variables = uv_settings.translated(listed.stdout)
    if listed.returncode or variables is None:
        return False
    constraints = uv_settings.constraints_of(variables)
    try:
        _step(
            log, "uv", uv, "pip", "install", "--python", own, *constraints, *arguments, **variables
        )
    except UserError:
        say(f"uv could not install them ({log} says why); pip does")
        return False
    return True


def _step(log: Path, what: str, *command: str | Path, **variables: str) -> None:
    """Run a command to its end with these environment variables; its output goes to ``log``. Without our
    Python settings: the modules of another interpreter must not be found, and compiled modules are to be
    kept there."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | variables
    try:
        name = log.stem.lstrip(".")
        with (
            log.open("ab") as file,
            progress(
                f"environment {name}: {what}",
                partial(packages_installed, log.with_name(name), log),
            ),
        ):
            done = subprocess.run(
                command,
                env=clean,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=DEADLINE_S,
                check=False,
            )
    except OSError as error:
        raise UserError(f"{what} cannot be started: {command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise DeadlineExceeded(what, f"its end; its output is in {log}", DEADLINE_S) from error
    if done.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        told = [line for line in lines if line.strip() and not line.startswith("WARNING")]
        raise UserError(
            f"{what} failed:\n  "
            + "\n  ".join(told[-_LAST_LINES:])
            + f"\nThe whole output: {log}. If a download failed, check the network and the index that `pip config "
            "list` shows; then run the command again"
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One maker at a time; the kernel drops the lock if its holder dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        give_up = time.monotonic() + DEADLINE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    who = f"another process that is creating the environment {folder.name!r}"
                    raise DeadlineExceeded(who, "its end", DEADLINE_S) from None
                time.sleep(0.2)
        yield


def _read(folder: Path) -> Made | None:
    try:
        data = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return Made(**{**data, "plugins": tuple(data["plugins"]), "folder": str(folder)})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _version(python: Path) -> str:
    """The version in ``pyvenv.cfg``."""
    for line in (python.parent.parent / "pyvenv.cfg").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "version":
            return value.strip()
    return "unknown"


def _size(folder: Path) -> int:
    """Bytes of the files below ``folder``, links not followed."""
    return sum(
        os.lstat(os.path.join(place, name)).st_size
        for place, _, names in os.walk(folder)
        for name in names
    )
