"""What clients save, in folders: states to continue from, and weights for sampling or for other programs.

A folder gets its name when all that is in it is on the disk, so that everything reported to a client survives a power failure."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self, get_args

from astraflow_contrib_tinker.work.access import visible
from astraflow_contrib_tinker.work.durable import flush, flush_tree, write_flushed
from astraflow_core.errors import Refused

Kind = Literal["weights", "sampler_weights", "external_weights"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_-]{0,199}")
_PATH = re.compile(
    r"tinker://(?P<model>[^/]{1,200})/(?P<kind>weights|sampler_weights|external_weights)/(?P<name>[^/]{1,100})"
)
ABOUT = "about.json"
_PARTIAL, _ASIDE = ".partial", ".replaced"
"""Endings of folders, whose names begin with a dot: not whole yet, and about to be removed."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a client saved. ``version`` is of the server's life, larger in what was saved later; ``request`` is the number of
    the request among those of its model, ``owner`` the name of its key. ``expires`` is when it is removed, 0: never."""

    model_id: str
    kind: Kind
    name: str
    base_model: str
    lora_rank: int
    version: int
    time: float
    size: int = 0
    request: int = 0
    owner: str = ""
    expires: float = 0

    @property
    def path(self) -> str:
        """Under which clients name it."""
        return f"tinker://{self.model_id}/{self.kind}/{self.name}"

    @property
    def expired(self) -> bool:
        """Whether it is to be removed."""
        return 0 < self.expires <= now()

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The entry in ``folder``; ``None`` if it is not finished or has expired."""
        found = cls.finished(folder)
        return None if found is None or found.expired else found

    @classmethod
    def finished(cls, folder: Path) -> Self | None:
        """The finished entry in ``folder``, also an expired one; ``None`` if there is none."""
        if folder.name.startswith("."):
            return None
        try:
            return cls(**json.loads((folder / ABOUT).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


class Store:
    """``directory/MODEL/KIND/NAME``, a folder for each; one is complete when it says what it is."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for aside in directory.glob(f"*/*/.*{_ASIDE}"):  # the server ended while it was replaced
            name = aside.with_name(aside.name[1 : -len(_ASIDE)])
            if name.exists():
                shutil.rmtree(aside)
            else:
                aside.rename(name)

    def folder(self, model_id: str, kind: Kind, name: str) -> Path:
        """Where it is, or would be. :class:`Refused` for a name that is not the name of a folder."""
        if not _NAME.fullmatch(name):
            raise Refused(
                400,
                f"the name {name[:100]!r}: expected letters, digits, dots, dashes and underscores, at most 100",
            )
        return self._of(model_id) / kind / name

    def begin(self, model_id: str, kind: Kind, name: str, overwrite: bool) -> Path:
        """An empty folder to write it to; :class:`Refused` with 400 if it exists already."""
        folder = self.folder(model_id, kind, name)
        if not overwrite and Saved.read(folder) is not None:
            raise Refused(
                400, f"{kind}/{name} of {model_id} exists; give overwrite or another name"
            )
        partial = folder.with_name(f".{name}{_PARTIAL}")
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        return partial

    def finish(self, folder: Path, saved: Saved) -> Saved:
        """``folder``, which :meth:`begin` gave, is complete: it takes the place of what had the name."""
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        whole = replace(saved, size=size)
        (folder / ABOUT).write_text(json.dumps(asdict(whole)) + "\n", encoding="utf-8")
        flush_tree(folder)
        final = folder.with_name(saved.name)
        aside = final.with_name(f".{saved.name}{_ASIDE}")
        if final.exists():
            shutil.rmtree(aside, ignore_errors=True)
            final.rename(aside)
        folder.rename(final)
        for holder in (final.parent, final.parent.parent, self.directory, self.directory.parent):
            flush(holder)
        shutil.rmtree(aside, ignore_errors=True)
        return whole

    def expire(self, model_id: str, kind: Kind, name: str, seconds: int | None) -> None:
        """Remove it that many seconds from now; ``None``: never."""
        folder = self.folder(model_id, kind, name)
        saved = Saved.read(folder)
        if saved is None or not visible(saved.owner):
            raise _absent(model_id, kind, name)
        changed = replace(saved, expires=expiry(seconds))
        write_flushed(folder / ABOUT, json.dumps(asdict(changed)) + "\n")

    def remove_expired(self) -> None:
        """Delete what has expired."""
        for about in self.directory.glob(f"*/*/*/{ABOUT}"):
            found = Saved.finished(about.parent)
            if found is not None and found.expired:
                shutil.rmtree(about.parent, ignore_errors=True)

    def find(self, path: str, kind: Kind) -> tuple[Saved, Path]:
        """What a client names; :class:`Refused` if it is nothing of that kind."""
        match = _PATH.fullmatch(path)
        if match is None or match["kind"] != kind:
            raise Refused(400, f"{path[:200]!r}: expected tinker://MODEL/{kind}/NAME")
        folder = self.folder(match["model"], kind, match["name"])
        saved = Saved.read(folder)
        if saved is None or not visible(saved.owner):
            raise Refused(404, f"nothing was saved as {path[:200]}")
        return saved, folder

    def of_model(self, model_id: str) -> list[Saved]:
        """All that was saved of a model, the oldest first."""
        found = (Saved.read(folder) for folder in self._of(model_id).glob("*/*"))
        seen = (saved for saved in found if saved is not None and visible(saved.owner))
        return sorted(seen, key=lambda saved: saved.time)

    def used_by(self, owner: str) -> int:
        """Bytes of what a key has saved by name."""
        found = (Saved.read(folder.parent) for folder in self.directory.glob(f"*/*/*/{ABOUT}"))
        return sum(saved.size for saved in found if saved is not None and saved.owner == owner)

    def made_by(self, model_id: str, kind: Kind, name: str | None, request: int) -> Saved | None:
        """What this request, or a later one under its name, has saved before: then it is worked on again."""
        for saved in self.of_model(model_id):
            later = saved.request >= request > 0 and saved.name == name
            if saved.kind == kind and (later or (name is None and saved.request == request > 0)):
                return saved
        return None

    def _of(self, model_id: str) -> Path:
        """The folder of a model, which no id leads out of."""
        if not _MODEL.fullmatch(model_id):
            raise Refused(400, f"{model_id[:120]!r} is not a model id")
        return self.directory / model_id.replace(":", ".")

    def remove(self, model_id: str, kind: Kind, name: str) -> None:
        """Delete it."""
        folder = self.folder(model_id, kind, name)
        saved = Saved.read(folder)
        if saved is None or not visible(saved.owner):
            raise _absent(model_id, kind, name)
        shutil.rmtree(folder)


def _absent(model_id: str, kind: Kind, name: str) -> Refused:
    return Refused(404, f"{model_id} has nothing saved as {kind}/{name}")


def expiry(seconds: int | None) -> float:
    """The time at which an entry that is kept for that many seconds from now is removed; 0: never."""
    return 0 if seconds is None else now() + seconds


def now() -> float:
    """Seconds since 1970."""
    return time.time()
