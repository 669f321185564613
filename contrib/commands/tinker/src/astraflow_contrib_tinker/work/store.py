"""What clients save, in folders: weights for sampling, and states to go on from."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self

from astraflow_core.errors import Refused
from astraflow_wire.host.disk import replace_file

Kind = Literal["weights", "sampler_weights"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_-]{0,199}")
_PATH = re.compile(
    r"tinker://(?P<model>[^/]{1,200})/(?P<kind>weights|sampler_weights)/(?P<name>[^/]{1,100})"
)
ABOUT = "about.json"


@dataclass(frozen=True, slots=True)
class Saved:
    """What a client saved. ``version`` is of the server's life, larger in what was saved later."""

    model_id: str
    kind: Kind
    name: str
    base_model: str
    lora_rank: int
    version: int
    time: float
    size: int = 0

    @property
    def path(self) -> str:
        """Under which clients name it."""
        return f"tinker://{self.model_id}/{self.kind}/{self.name}"

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """From its folder; ``None`` if none was finished there."""
        try:
            return cls(**json.loads((folder / ABOUT).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


class Store:
    """``directory/MODEL/KIND/NAME``, a folder for each; one is complete when it says what it is."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def folder(self, model_id: str, kind: Kind, name: str) -> Path:
        """Where it is, or would be. :class:`Refused` for a name that is none of a folder."""
        if not _NAME.fullmatch(name):
            raise Refused(
                400,
                f"the name {name[:100]!r}: expected letters, digits, dots, dashes and underscores, at most 100",
            )
        return self._of(model_id) / kind / name

    def begin(self, model_id: str, kind: Kind, name: str, overwrite: bool) -> Path:
        """An empty folder for it; :class:`Refused` with 400 if there is one already."""
        folder = self.folder(model_id, kind, name)
        if folder.exists():
            if not overwrite and Saved.read(folder) is not None:
                raise Refused(
                    400, f"{kind}/{name} of {model_id} exists; give overwrite or another name"
                )
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder

    def finish(self, folder: Path, saved: Saved) -> Saved:
        """It is complete now."""
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        whole = replace(saved, size=size)
        replace_file(folder / ABOUT, json.dumps(asdict(whole)) + "\n")
        return whole

    def find(self, path: str, kind: Kind) -> tuple[Saved, Path]:
        """What a client names; :class:`Refused` if it is nothing of that kind."""
        match = _PATH.fullmatch(path)
        if match is None or match["kind"] != kind:
            raise Refused(400, f"{path[:200]!r}: expected tinker://MODEL/{kind}/NAME")
        folder = self.folder(match["model"], kind, match["name"])
        saved = Saved.read(folder)
        if saved is None:
            raise Refused(404, f"nothing was saved as {path[:200]}")
        return saved, folder

    def of_model(self, model_id: str) -> list[Saved]:
        """All that was saved of a model, the oldest first."""
        found = (Saved.read(folder) for folder in self._of(model_id).glob("*/*"))
        return sorted((saved for saved in found if saved is not None), key=lambda s: s.time)

    def _of(self, model_id: str) -> Path:
        """The folder of a model, which no id leads out of."""
        if not _MODEL.fullmatch(model_id):
            raise Refused(400, f"{model_id[:120]!r} is no id of a model")
        return self.directory / model_id.replace(":", ".")

    def remove(self, model_id: str, kind: Kind, name: str) -> None:
        """Delete it."""
        folder = self.folder(model_id, kind, name)
        if Saved.read(folder) is None:
            raise Refused(404, f"{model_id} has nothing saved as {kind}/{name}")
        shutil.rmtree(folder)


def now() -> float:
    """Seconds since 1970."""
    return time.time()
