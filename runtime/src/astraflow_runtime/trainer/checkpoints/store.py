"""Checkpoints of a trainer: written atomically, verified when read, deleted by a retention rule."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from astraflow_core.errors import NoRoom, UserError
from astraflow_runtime.trainer.checkpoints.digests import (
    DamagedCheckpoint,
    FileDigest,
    digests,
    verify,
)
from astraflow_runtime.trainer.operations import Operations
from astraflow_wire.decoding import UNDECODABLE
from astraflow_wire.host.disk import is_full

log = logging.getLogger(__name__)

_NAME = re.compile(r"^update-(\d{8})$")
_FACTS = "checkpoint.json"


class CheckpointFacts(msgspec.Struct, frozen=True):
    """``checkpoint.json``: the trainer whose state it is, and the digests of its files. ``time`` in
    seconds since the epoch; ``xxh3_128``: hexadecimal digest of all the other fields as compact
    JSON, in this order."""

    policy: str
    trainer: str
    ranks: int
    updates: int
    version: int
    time: float
    files: dict[str, FileDigest]
    xxh3_128: str = ""

    def sealed(self) -> CheckpointFacts:
        """The same with its digest."""
        return msgspec.structs.replace(self, xxh3_128=self.digest())

    def digest(self) -> str:
        """What :attr:`xxh3_128` must be; checkpoints of version 0.1 have none."""
        fields = msgspec.structs.asdict(self)
        del fields["xxh3_128"]
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(fields))


@dataclass
class _Pending:
    """A pending checkpoint; ``sealing`` once the trainer has written its part."""

    updates: int
    version: int
    folder: Path
    sealing: Future[Path] | None = None


class Checkpoints:
    """``directory/update-N/`` holds what the trainer wrote and ``checkpoint.json`` with the digests of its files.

    The newest ``keep`` stay, and older ones until :meth:`delete_old`.
    ``trainer`` and ``ranks`` are the current ones; ``reshards``: a state of another number of ranks
    can be read.
    """

    def __init__(
        self,
        directory: Path,
        policy: str,
        *,
        keep: int,
        trainer: str = "",
        ranks: int = 1,
        reshards: bool = False,
    ) -> None:
        self._directory, self._policy = directory, policy
        self._keep = keep
        self._trainer, self._ranks, self._reshards = trainer, ranks, reshards
        self._pending: _Pending | None = None
        self._verified = -1
        self._sealer = ThreadPoolExecutor(1, "checkpoint")

    def saved(self) -> dict[int, Path]:
        """Updates → folder of every complete checkpoint, oldest first."""
        if not self._directory.is_dir():
            return {}
        found = {}
        for folder in sorted(self._directory.iterdir()):
            matched = _NAME.match(folder.name)
            if matched and (folder / _FACTS).is_file():
                found[int(matched.group(1))] = folder
        return found

    def sound(self) -> dict[int, Path]:
        """:meth:`saved` up to the newest intact checkpoint; newer, damaged ones are logged.
        :class:`UserError` if it belongs to another trainer.
        """
        found = self.saved()
        for updates in sorted(found, reverse=True):
            try:
                self._check(found[updates])
            except DamagedCheckpoint as error:
                log.error("%s; trying the previous one", error)
                del found[updates]
            else:
                self._verified = updates
                break
        return found

    def chosen(self, updates: int) -> Path | None:
        """The folder of the checkpoint to resume from, verified; ``None`` for the start, which has none."""
        folder = self.saved().get(updates)
        if folder is not None and updates != self._verified:
            self._check(folder)
        return folder

    def _check(self, folder: Path) -> None:
        try:
            facts = msgspec.json.decode((folder / _FACTS).read_bytes(), type=CheckpointFacts)
        except UNDECODABLE as error:
            raise DamagedCheckpoint(f"checkpoint {folder}: {_FACTS}: {error}") from error
        if facts.xxh3_128 not in ("", facts.digest()):
            raise DamagedCheckpoint(f"checkpoint {folder}: {_FACTS} has changed since it was saved")
        for what, there, here in (
            ("policy", facts.policy, self._policy),
            ("trainer", facts.trainer, self._trainer),
        ):
            if there != here:
                raise UserError(f"checkpoint {folder} belongs to {what} {there!r}, not {here!r}")
        if facts.ranks != self._ranks and not self._reshards:
            raise UserError(
                f"checkpoint {folder} was saved by {facts.ranks} ranks, and trainer {self._trainer!r} cannot "
                f"read it with {self._ranks}: set trainer.ranks = {facts.ranks}"
            )
        verify(folder, facts.files)

    def forget_after(self, updates: int) -> None:
        """Delete the checkpoints of later updates, which will be repeated, and incomplete ones."""
        for later, folder in self.saved().items():
            if later > updates:
                shutil.rmtree(folder)
        for partial in self._directory.glob(".update-*.partial"):
            shutil.rmtree(partial)

    def begin(self, operations: Operations, updates: int, version: int) -> None:
        """Let the trainer write its state to a temporary folder. No checkpoint may be pending
        (:meth:`advance`).
        """
        assert self._pending is None, "one checkpoint at a time"
        partial = self._directory / f".update-{updates:08d}.partial"
        if partial.exists():
            shutil.rmtree(partial)
        self._pending = _Pending(updates, version, partial)
        with self._dropping():
            partial.mkdir(parents=True)
            operations.save(partial)

    def advance(self, operations: Operations, *, wait: bool) -> Path | None:
        """The folder of the pending checkpoint if it is complete, with its digests; ``None`` if
        there is none or it is incomplete. :class:`NoRoom` if the disk is full; existing checkpoints
        are kept.
        """
        pending = self._pending
        if pending is None:
            return None
        with self._dropping():
            if pending.sealing is None:
                if not operations.finish_save(wait):
                    return None
                pending.sealing = self._sealer.submit(self._seal, pending)
            if not wait and not pending.sealing.done():
                return None
            final = pending.sealing.result()
        self._pending = None
        return final

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        """Drop the pending checkpoint if the block raises; :class:`NoRoom` if the disk is full."""
        try:
            yield
        except Exception as error:
            pending, self._pending = self._pending, None
            assert pending is not None
            full = is_full(error, self._directory)
            shutil.rmtree(pending.folder, ignore_errors=True)
            if full:
                final = self._directory / f"update-{pending.updates:08d}"
                raise NoRoom(f"{final}: {error}") from error
            raise

    def _seal(self, pending: _Pending) -> Path:
        """Write the digests, flush everything to the disk, and rename the folder."""
        facts = CheckpointFacts(
            policy=self._policy,
            trainer=self._trainer,
            ranks=self._ranks,
            updates=pending.updates,
            version=pending.version,
            time=time.time(),
            files=digests(pending.folder),
        )
        encoded = msgspec.json.format(msgspec.json.encode(facts.sealed()), indent=1)
        (pending.folder / _FACTS).write_bytes(encoded + b"\n")
        for written in [*pending.folder.rglob("*"), pending.folder]:
            _flush(written)
        final = self._directory / f"update-{pending.updates:08d}"
        if final.exists():
            shutil.rmtree(final)
        pending.folder.rename(final)
        _flush(self._directory)
        return final

    def delete_old(self) -> None:
        """Delete all but the newest ``keep``, in the background. Until the dataflow's journal is
        flushed up to the newest, the run may have to resume from the previous one.
        """
        self._sealer.submit(self._delete_old)

    def _delete_old(self) -> None:
        for folder in list(self.saved().values())[: -self._keep]:
            try:
                shutil.rmtree(folder)
            except OSError as error:
                log.warning("checkpoint %s cannot be deleted: %s", folder, error)

    def close(self) -> None:
        """Wait for pending writes and deletions."""
        self._sealer.shutdown()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
