"""Checkpoints of a trainer: written whole or not at all, kept by rule."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

from astraflow_core.disk import is_full
from astraflow_core.errors import AstraFlowError
from astraflow_core.trainer.operations import Operations

_NAME = re.compile(r"^update-(\d{8})$")


class NoRoom(AstraFlowError):
    """A checkpoint was not saved because the disk is full."""


class Checkpoints:
    """``directory/update-N/`` holds what :meth:`Operations.save` wrote and ``checkpoint.json`` with policy,
    updates, version and time. The newest ``keep`` stay."""

    def __init__(self, directory: Path, policy: str, keep: int) -> None:
        self._directory, self._policy, self._keep = directory, policy, keep

    def saved(self) -> dict[int, Path]:
        """Updates → folder of every complete checkpoint, oldest first."""
        if not self._directory.is_dir():
            return {}
        found = {}
        for folder in sorted(self._directory.iterdir()):
            matched = _NAME.match(folder.name)
            if matched and (folder / "checkpoint.json").is_file():
                found[int(matched.group(1))] = folder
        return found

    def forget_after(self, updates: int) -> None:
        """Delete the checkpoints of later updates: these will be made again."""
        for later, folder in self.saved().items():
            if later > updates:
                shutil.rmtree(folder)

    def save(self, trainer: Operations, updates: int, version: int) -> Path:
        """Write a checkpoint beside its place, flush it to disk, then move it there. :class:`NoRoom` if the
        disk is full; the checkpoints that are there stay."""
        final = self._directory / f"update-{updates:08d}"
        partial = self._directory / f".update-{updates:08d}.partial"
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        try:
            self._write(partial, trainer, updates, version)
        except Exception as error:
            full = is_full(error, partial)
            shutil.rmtree(partial)
            if full:
                raise NoRoom(f"{final}: {error}") from error
            raise
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        _flush(self._directory)
        for folder in list(self.saved().values())[: -self._keep]:
            shutil.rmtree(folder)
        return final

    def _write(self, folder: Path, trainer: Operations, updates: int, version: int) -> None:
        trainer.save(folder)
        facts = {
            "policy": self._policy,
            "updates": updates,
            "version": version,
            "time": time.time(),
        }
        (folder / "checkpoint.json").write_text(json.dumps(facts, indent=1) + "\n")
        for written in [*folder.rglob("*"), folder]:
            _flush(written)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
