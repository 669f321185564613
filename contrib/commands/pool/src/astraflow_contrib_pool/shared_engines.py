"""Which runs of a host share an engine: those that train adapters on the same model with an engine of the same keys."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.environments import cache_folder
from astraflow_core.errors import AstraFlowError, RunFailed
from astraflow_runtime.raas.shared_engine import (
    MOST_RANK,
    Attachment,
    SharedEngineProcess,
    environment_of,
)
from astraflow_wire.host.private_folder import PrivateFolder
from astraflow_wire.host.sockets import socket_folder

log = logging.getLogger("astraflow.pool")
START_S = 600.0
MODELS = "pool-models-"
"""Begin of the names of folders with copies of models, in the cache folder."""

_COPIED = (".json", ".safetensors", ".txt", ".model", ".jinja")
"""Files of a model; a folder with its own code is not shared."""

_PIECE = 1 << 22
_MOST_FILES = 10_000
_MOST_OF_A_RUN = 8
_OF_CORE = frozenset({"use", "python", "replicas", "devices"})
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class ShareableEngine:
    """The engine of a policy that trains an adapter."""

    policy: str
    model: Path
    use: str
    options: Mapping[str, Any]


@dataclass
class _Shared:
    """``users``: the RaaS that use it → the attachments of their policies."""

    process: SharedEngineProcess
    folder: Any
    model: Path
    users: dict[Hashable, list[Attachment]] = field(default_factory=dict)
    life: asyncio.Task[None] | None = None


def shareable(run: str, config: Mapping[str, Any]) -> list[ShareableEngine]:
    """The policies of a run's resolved config whose engine could be shared: their trainer has a ``lora_rank``, and their engine is an
    installed component that serves adapters, alone in the RaaS and in this host's own interpreter. The log says why others cannot be."""
    catalog, found = Catalog.discover(), []
    for name, policy in islice(config.get("policies", {}).items(), _MOST_OF_A_RUN):
        engine = policy.get("engine", {})
        if reason := _reason(catalog, config, policy.get("trainer", {}), engine):
            log.info("policy %r of run %s has its own engine: %s", name, run, reason)
            continue
        options = {key: value for key, value in engine.items() if key not in _OF_CORE}
        found.append(ShareableEngine(name, Path(policy["model"]), engine["use"], options))
    return found


def _reason(
    catalog: Catalog,
    config: Mapping[str, Any],
    trainer: Mapping[str, Any],
    engine: Mapping[str, Any],
) -> str:
    """Why an engine is not shared; empty if it could be."""
    use, rank = engine.get("use", ""), trainer.get("lora_rank")
    if config.get("run", {}).get("colocated"):
        return "the run is colocated"
    if not rank:
        return "its trainer has no lora_rank"
    if rank > MOST_RANK:
        return f"lora_rank {rank} is larger than {MOST_RANK}"
    if keys := [key for key in ("python", "devices") if engine.get(key)]:
        return f"its engine has the key {keys[0]!r}"
    if engine.get("replicas", 1) != 1:
        return "its engine has replicas"
    if ":" in use or "adapters" not in catalog.flags(Kind.ENGINE, use):
        return f"engine {use!r} is not an installed component that serves adapters"
    return ""


class SharedEngines:
    """The shared engines of a host, each with ``places`` concurrent requests, for at most ``slots`` RaaS. ``environment`` is that of their
    processes."""

    def __init__(
        self, places: int, slots: int, environment: Mapping[str, str], in_thread: InThread
    ) -> None:
        self._slots = slots
        self._places, self._environment, self._in_thread = places, environment, in_thread
        self._models: PrivateFolder | None = None
        self._engines: dict[str, _Shared] = {}
        self._starting: dict[str, asyncio.Lock] = {}

    async def attach(self, user: Hashable, run: str, config: Mapping[str, Any]) -> dict[str, str]:
        """The engines for a RaaS of ``run``; those that cannot be shared are its own. May be cancelled."""
        attachments = {}
        try:
            for each in await self._in_thread(partial(shareable, run, config)):
                attachment = await self._attachment(each, user, run)
                if attachment is not None:
                    attachments[each.policy] = attachment
        except (AttributeError, TypeError, ValueError, OSError, AstraFlowError) as error:
            # A tenant may have written anything.
            log.warning("engines of run %s are not shared: %s", run, error)
        return environment_of(attachments)

    async def release(self, user: Hashable) -> None:
        """A RaaS has ended; engines without users end."""
        for key, shared in list(self._engines.items()):
            for attachment in shared.users.pop(user, []):
                shared.process.revoke(attachment)
            if not shared.users and self._engines.pop(key, None) is not None:
                await self._end(shared)

    async def close(self) -> None:
        """End all."""
        engines, self._engines = self._engines, {}
        for shared in engines.values():
            await self._end(shared)
        if self._models is not None:
            self._models.close()

    async def _attachment(
        self, wanted: ShareableEngine, user: Hashable, run: str
    ) -> Attachment | None:
        """For one policy. Each slot of the host may hold an equal share of the adapters; one share is left for a RaaS that starts before
        the end of its predecessor is reported."""
        digest = await self._in_thread(partial(digest_of_folder, wanted.model, room()))
        key = json.dumps([digest, wanted.use, wanted.options], sort_keys=True, default=str)
        async with self._starting.setdefault(key, asyncio.Lock()):
            shared = self._engines.get(key) or await self._start(wanted, key, digest)
            if shared is None:
                return None
            most, held = shared.process.most_adapters, shared.users.get(user, [])
            full = sum(map(len, shared.users.values())) >= most
            if full or len(held) >= max(1, most // (self._slots + 1)):
                what = (wanted.policy, run, most, self._slots)
                log.warning("policy %r of run %s has its own engine: a shared one serves %d adapters, for %d slots", *what)  # fmt: skip
                return None
            attachment = shared.process.attachment(run)
            shared.users[user] = [*held, attachment]
            log.info("policy %r of run %s has a shared engine (pid %d)", wanted.policy, run, shared.process.pid)  # fmt: skip
            return attachment

    async def _start(self, wanted: ShareableEngine, key: str, digest: str) -> _Shared | None:
        """With a copy of the model, since a run may change its own."""
        if self._models is None:
            self._models = PrivateFolder(cache_folder(), MODELS)
        folder = socket_folder()
        model = self._models.path / folder.path.name
        process = SharedEngineProcess(wanted.use, wanted.options, model, folder.path, self._places)
        shared = _Shared(process, folder, model)
        try:
            copied = await self._in_thread(partial(digest_of_folder, wanted.model, room(), model))
            if copied != digest:
                raise ValueError(f"{wanted.model} changed while it was copied")
            await process.start(self._environment, START_S)
        except RunFailed as error:
            log.warning("engine %r is not shared: %s", wanted.use, error)
            await self._end(shared)
            return None
        except BaseException:
            await asyncio.shield(self._end(shared))
            raise
        log.info("a shared engine %r serves model %s (pid %d)", wanted.use, digest[:12], process.pid)  # fmt: skip
        shared.life = asyncio.create_task(self._keep(key, shared))
        self._engines[key] = shared
        return shared

    async def _keep(self, key: str, shared: _Shared) -> None:
        """Start it again when it has died; RaaS notice it, and attach again."""
        while True:
            code = await shared.process.ended()
            log.error("a shared engine ended with exit code %d; starting it again", code)
            try:
                await shared.process.start(self._environment, START_S)
            except AstraFlowError as error:
                log.error("a shared engine does not start again: %s", error)
                if self._engines.get(key) is shared:
                    del self._engines[key]
                    shared.life = None  # it is this task, which _end would cancel
                    await self._end(shared)
                return

    async def _end(self, shared: _Shared) -> None:
        if shared.life is not None:
            shared.life.cancel()
            await asyncio.gather(shared.life, return_exceptions=True)
        await shared.process.stop()
        shared.folder.close()
        await self._in_thread(partial(shutil.rmtree, shared.model, ignore_errors=True))


def digest_of_folder(folder: Path, most: int, copy: Path | None = None) -> str:
    """The SHA-256 of names and contents of a model's files, of at most that many bytes, which it copies. Raises :class:`ValueError` for
    a folder with code or with entries that are not regular files, and :class:`OSError` if it is too large."""
    names = sorted(each.name for each in islice(folder.iterdir(), _MOST_FILES))
    if code := [name for name in names if name.endswith(".py")]:
        raise ValueError(f"{folder} has code: {', '.join(code[:3])}")
    if copy is not None:
        copy.mkdir(0o700)
    whole = hashlib.sha256()
    for name in names:
        if not name.endswith(_COPIED):
            continue
        part = hashlib.sha256()
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(_opened(folder / name))
            target = stack.enter_context((copy / name).open("xb")) if copy is not None else None
            while piece := source.read(_PIECE):
                most -= len(piece)
                if most < 0:
                    raise OSError(f"there is no disk space for a copy of {folder}")
                part.update(piece)
                if target is not None:
                    target.write(piece)
        whole.update(f"{len(name)}:{name}".encode() + part.digest())
    return whole.hexdigest()


def room() -> int:
    """Bytes that a copy may have: half of what is free."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(folder).free // 2


def _opened(path: Path) -> IO[bytes]:
    """A file, also behind a link, which caches of models have; never a FIFO or a device."""
    number = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise ValueError(f"{path} is not a regular file")
    return os.fdopen(number, "rb")
