"""The prompt sources of games."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from astraflow_contrib_textworld.config import TextWorldFolderConfig, TextWorldGamesConfig
from astraflow_contrib_textworld.making import SUFFIX
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt
from astraflow_environments.tasks import PromptList, drawn_seeds, is_held_out


class TextWorldGames(PromptList):
    """Games to be made: ``data`` has ``kind``, ``settings`` and ``seed``. The seed alone decides the split."""

    def __init__(self, config: TextWorldGamesConfig, context: ComponentContext) -> None:
        data = {"kind": config.kind, "settings": dict(config.settings)}
        super().__init__(drawn_seeds("textworld_games", config, data))


class TextWorldFolder(PromptList):
    """The games of a folder, by name: ``data["file"]`` is the path. The content of the ``.json`` decides the split, and is the
    prompt's id, so that a copy of a game is left out."""

    def __init__(self, config: TextWorldFolderConfig, context: ComponentContext) -> None:
        found: dict[str, Prompt] = {}
        for file in _games(config.path.expanduser()):
            if config.limit is not None and len(found) == config.limit:
                break
            digest = _digest(file.with_suffix(".json"))
            if config.split == "all" or is_held_out(digest) == (config.split == "held_out"):
                found.setdefault(digest, Prompt(digest, {"file": str(file)}))
        if not found:
            raise PromptError(
                f"prompt source 'textworld_folder': {config.path} has no games of split {config.split!r}; a smaller folder may "
                'have none of one split: make more, or use split = "all"'
            )
        super().__init__(list(found.values()))


def _games(folder: Path) -> list[Path]:
    """Files of games by name, of which each has its ``.json``."""
    try:
        files = sorted(file for file in folder.absolute().iterdir() if file.suffix == SUFFIX)
    except OSError as error:
        raise PromptError(
            f"prompt source 'textworld_folder' cannot read {folder.absolute()}: {error.strerror}"
        ) from error
    if not files:
        raise PromptError(
            f"prompt source 'textworld_folder': {folder.absolute()} has no .z8 file; make games with `tw-make KIND "
            "--output FOLDER/`"
        )
    lacking = [file.name for file in files if not file.with_suffix(".json").is_file()]
    if lacking:
        raise PromptError(
            f"prompt source 'textworld_folder': {folder.absolute()}: {lacking[0]} has no {Path(lacking[0]).stem}.json next to "
            f"it, from which TextWorld knows the score{f' ({len(lacking)} such games)' if len(lacking) > 1 else ''}"
        )
    return files


def _digest(file: Path) -> str:
    try:
        return blake2b(file.read_bytes(), digest_size=9).hexdigest()
    except OSError as error:
        raise PromptError(
            f"prompt source 'textworld_folder' cannot read {file}: {error.strerror}"
        ) from error
