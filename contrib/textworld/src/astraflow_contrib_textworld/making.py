"""Games that TextWorld makes from a kind, settings and a seed: once, kept in the cache of AstraFlow."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from hashlib import blake2b
from importlib import metadata
from pathlib import Path

from astraflow_core.config.environments import cache_folder
from astraflow_core.errors import EnvironmentFailed, PromptError

SUFFIX = ".z8"
KIND = r"^[A-Za-z][A-Za-z0-9_-]*$"
Settings = dict[str, bool | int | float | str]
_OURS = (
    "output", "format", "seed", "force", "silent", "verbose", "overview", "save-overview", "third-party", "help",
)  # fmt: skip
"""Options of tw-make that are set here, or say nothing about the game."""
_DEADLINE_S = 900.0
_LAST_CHARACTERS = 400


def checked_kind(kind: str) -> str:
    """``kind`` as it is; :class:`ValueError` if that cannot be the name of one."""
    if not re.fullmatch(KIND, kind):
        raise ValueError(f"{kind!r:.80} is not a kind of game, such as 'tw-coin_collector'")
    return kind


def checked_settings(settings: Mapping[str, bool | int | float | str]) -> Settings:
    """``settings`` as they are; :class:`ValueError` names one that is no option of a kind of games."""
    for name in settings:
        option = name.replace("_", "-")
        if not re.fullmatch(KIND, name) or any(ours.startswith(option) for ours in _OURS):
            raise ValueError(
                f"{name!r} is not a game setting: see `tw-make KIND --help` for the options of a kind, such as 'level' of "
                "tw-coin_collector"
            )
    return dict(settings)


def made_game(
    who: str, kind: str, settings: Mapping[str, bool | int | float | str], seed: int
) -> Path:
    """The ``.z8`` file of a game, made if it is not there yet. As many are made at once as there are processors; others wait.
    :class:`PromptError` if TextWorld refuses the settings, :class:`EnvironmentFailed` if it fails."""
    options = _options(checked_settings(settings))
    described = json.dumps([metadata.version("textworld"), kind, options, seed])
    digest = blake2b(described.encode(), digest_size=12).hexdigest()
    folder = cache_folder() / "textworld"
    game = folder / f"{digest}{SUFFIX}"
    if not game.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Equal games have the same lock, and there are as many locks as processors.
        lock = folder / f"{int(digest[:8], 16) % (os.cpu_count() or 1)}.lock"
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not game.exists():
                _make(who, game, [kind, f"--seed={seed}", *options])
    return game


def _options(settings: Settings) -> list[str]:
    """What they are on the command line: ``recipe = 2`` is ``--recipe=2``, ``cook = true`` is ``--cook``."""
    named = [(name.replace("_", "-"), value) for name, value in sorted(settings.items())]
    return [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in named
        if value is not False
    ]


def _make(who: str, game: Path, arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="textworld-") as made:
        new = Path(made) / game.name
        command = [
            sys.executable,
            str(_script()),
            *arguments,
            f"--output={new}",
            "--format=z8",
            "--silent",
        ]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_DEADLINE_S,
                check=False,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentFailed("make", f"could not make a game: {error}") from error
        reason = done.stderr.strip().rpartition("error: ")[2][-_LAST_CHARACTERS:]
        said = f"`tw-make {' '.join(arguments)}`: {reason}"
        if done.returncode == 2:
            raise PromptError(f"{who}: TextWorld refuses {said}")
        if done.returncode or not new.exists():
            raise EnvironmentFailed("make", f"could not make a game with {said}")
        # The game is written last: if it exists, both do.
        for file in (new.with_suffix(".json"), new):
            part = game.with_name(f"{file.name}.part")
            shutil.copyfile(file, part)
            os.replace(part, game.with_name(file.name))


def _script() -> Path:
    """``tw-make``, where TextWorld's distribution has it."""
    for file in metadata.files("textworld") or ():
        if file.name == "tw-make":
            return Path(str(file.locate())).resolve()
    raise EnvironmentFailed("make", "finds no tw-make in the installation of TextWorld")
