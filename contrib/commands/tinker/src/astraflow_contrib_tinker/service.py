"""Sessions of clients with their models and samplers."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import shutil
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from astraflow_contrib_tinker.wire.datums import GradientRequest
from astraflow_contrib_tinker.wire.results import Result
from astraflow_contrib_tinker.work.base import BaseModel
from astraflow_contrib_tinker.work.futures import Promise, Promises, Work
from astraflow_contrib_tinker.work.ordering import Ordered
from astraflow_contrib_tinker.work.sampling import EnginePool, SampleWish, WeightsSnapshot
from astraflow_contrib_tinker.work.store import Kind, Saved, Store, now
from astraflow_contrib_tinker.work.training import TrainedModel, TrainingThread
from astraflow_core.errors import Refused
from astraflow_core.protocols.trainer import AdamWStep

IDLE_S = 900.0
"""How long a session lives without a heartbeat; clients send one every ten seconds."""
MOST_SESSIONS = 1024
MOST_SAMPLERS = 4096
"""Of one session; the oldest is forgotten."""
KEPT_SNAPSHOTS = 32
"""Unnamed weights for sampling that are kept of a model."""


@dataclass
class ClientSampler:
    """What a sampling session samples from. With ``follows`` it is the newest weights that this model gave its followers."""

    id: str
    snapshot: WeightsSnapshot
    model_path: str | None = None
    follows: str | None = None
    made: OrderedDict[int, tuple[Promise, list[str]]] = field(default_factory=OrderedDict)


@dataclass
class ClientSession:
    """What one client has."""

    id: str
    metadata: dict[str, str]
    seen: float
    models: dict[str, TrainedModel] = field(default_factory=dict)
    samplers: OrderedDict[str, ClientSampler] = field(default_factory=OrderedDict)


class Service:
    """All that the server has. To be used in one event loop."""

    def __init__(self, base: BaseModel, store: Store, models: int, engines: int) -> None:
        self.base, self.store, self.promises = base, store, Promises()
        self.computing, self.pool = TrainingThread(), EnginePool(base, engines)
        self.sessions: dict[str, ClientSession] = {}
        self._most_models = models
        self._versions, self._seeds = itertools.count(1), itertools.count(base.seed + 1)
        self._unnamed: dict[str, OrderedDict[int, Path]] = {}
        self._saved_versions: dict[str, int] = {}
        self._closing: set[asyncio.Future[None]] = set()

    def begin(self, metadata: dict[str, str]) -> ClientSession:
        """A new session."""
        self.end_idle()
        if len(self.sessions) >= MOST_SESSIONS:
            raise Refused(429, f"{MOST_SESSIONS} sessions are open; end some")
        session = ClientSession(secrets.token_hex(8), metadata, time.monotonic())
        self.sessions[session.id] = session
        return session

    def session(self, id: str) -> ClientSession:
        """The session, which has been heard of now; :class:`Refused` with 404."""
        found = self.sessions.get(id)
        if found is None:
            raise Refused(
                404,
                f"there is no session {id[:80]!r}: it has ended, or the server has restarted",
            )
        found.seen = time.monotonic()
        return found

    def model(self, id: str) -> TrainedModel:
        """A model; :class:`Refused` with 404."""
        owner = self.sessions.get(id.partition(":")[0])
        found = None if owner is None else owner.models.get(id)
        if owner is None or found is None:
            raise Refused(
                404,
                f"there is no model {id[:120]!r}: it was never created, or its session has ended",
            )
        owner.seen, found.last_request = time.monotonic(), now()
        return found

    def sampler(self, id: str) -> ClientSampler:
        """A sampler; :class:`Refused` with 404."""
        owner = self.sessions.get(id.partition(":")[0])
        found = None if owner is None else owner.samplers.get(id)
        if owner is None or found is None:
            raise Refused(404, f"there is no sampling session {id[:120]!r}")
        owner.seen = time.monotonic()
        return found

    def create_model(
        self,
        session: ClientSession,
        number: int,
        rank: int,
        seed: int | None,
        metadata: dict[str, str],
    ) -> TrainedModel:
        """A model, not yet open. The same number gives the same model."""
        id = f"{session.id}:train:{number}"
        if id in session.models:
            return session.models[id]
        if sum(len(each.models) for each in self.sessions.values()) >= self._most_models:
            self.end_idle()
        held = sum(len(each.models) for each in self.sessions.values())
        if held >= self._most_models:
            raise Refused(
                429,
                f"{held} models are trained, as many as --models allows; end one of their sessions",
            )
        seed = next(self._seeds) if seed is None else seed
        order = Ordered(self.promises, session.id)
        session.models[id] = TrainedModel(id, session.id, self.base, rank, seed, order, metadata)
        return session.models[id]

    async def gradient(self, model: TrainedModel, request: GradientRequest) -> Result:
        """Work of ``forward_backward``."""
        return await self.computing.do(model.gradient, request)

    async def step(self, model: TrainedModel, settings: AdamWStep) -> Result:
        """Work of ``optim_step``."""
        return await self.computing.do(model.step, settings)

    async def save(
        self, model: TrainedModel, kind: Kind, name: str | None, overwrite: bool
    ) -> Saved:
        """Save a state or weights by name; without a name one that is not in use."""
        version = next(self._versions)
        name = name or f"{version:06d}-{secrets.token_hex(3)}"
        folder = self.store.begin(model.id, kind, name, overwrite)
        await self.computing.do(
            model.save_state if kind == "weights" else model.save_weights, folder
        )
        saved = Saved(model.id, kind, name, self.base.name, model.lora_rank, version, now())
        return self.store.finish(folder, saved)

    async def snapshot(self, model: TrainedModel, number: int, follow: bool) -> ClientSampler:
        """A sampler of the weights of now; those that follow this model get them too."""
        version = next(self._versions)
        folder = self.base.scratch / "snapshots" / str(version)
        folder.mkdir(parents=True)
        await self.computing.do(model.save_weights, folder)
        snapshot, session = WeightsSnapshot(version, folder), self.session(model.session)
        self._keep(model.id, snapshot)
        if follow:
            for each in session.samplers.values():
                if each.follows == model.id:
                    each.snapshot = snapshot
        id = f"{session.id}:sample:{number}"
        return self._add(session, ClientSampler(id, snapshot, None, model.id if follow else None))

    def create_sampler(
        self, session: ClientSession, number: int, path: str | None
    ) -> ClientSampler:
        """A sampler of saved weights, or of the base model."""
        id = f"{session.id}:sample:{number}"
        if id in session.samplers:
            return session.samplers[id]
        if path is None:
            return self._add(session, ClientSampler(id, WeightsSnapshot(0, self.base.folder)))
        _, folder = self.store.find(path, "sampler_weights")
        # A number of this server's life: a folder may be from an earlier one, or have been written again.
        about = (folder / "about.json").stat()
        key = f"{folder}:{about.st_mtime_ns}:{about.st_ino}"
        if key not in self._saved_versions:
            self._saved_versions[key] = next(self._versions)
        return self._add(
            session, ClientSampler(id, WeightsSnapshot(self._saved_versions[key], folder), path)
        )

    def sample(
        self, sampler: ClientSampler, number: int | None, wish: SampleWish
    ) -> tuple[Promise, list[str]]:
        """The promise of samples and an id for each, which names the version that samples it. A repeated number gives
        what it gave before."""
        if number is not None and number in sampler.made:
            return sampler.made[number]
        promise, snapshot = self.promises.make(sampler.id.partition(":")[0]), sampler.snapshot
        ids = [f"v{snapshot.version}-{promise.id}-{place}" for place in range(wish.count)]

        async def work() -> Result:
            return await self.pool.sample(snapshot, wish)

        self.promises.start(promise, work)
        if number is not None:
            sampler.made[number] = promise, ids
            while len(sampler.made) > MOST_SAMPLERS:
                sampler.made.popitem(last=False)
        return promise, ids

    def put(self, model: TrainedModel, number: int | None, body: bytes, work: Work) -> Promise:
        """Work on a model in its turn."""
        return model.order.put(number, body, work)

    def promised(self, owner: str, work: Work) -> Promise:
        """Work without a number."""
        promise = self.promises.make(owner)
        self.promises.start(promise, work)
        return promise

    def end(self, session: ClientSession) -> None:
        """End a session: its requests are cancelled, its models and unnamed weights removed."""
        self.sessions.pop(session.id, None)
        for model in session.models.values():
            model.order.close()
        self.promises.forget(session.id)
        for model in session.models.values():
            closing = asyncio.ensure_future(self._close(model))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def end_idle(self) -> None:
        """End the sessions of clients that have disappeared."""
        oldest = time.monotonic() - IDLE_S
        for session in [s for s in self.sessions.values() if s.seen < oldest]:
            self.end(session)

    async def close(self) -> None:
        """End everything."""
        for session in list(self.sessions.values()):
            self.end(session)
        await asyncio.gather(*self._closing)
        await self.pool.close()
        await asyncio.to_thread(self.computing.close)

    async def _close(self, model: TrainedModel) -> None:
        await self.computing.do(model.close)
        for folder in self._unnamed.pop(model.id, {}).values():
            await asyncio.to_thread(shutil.rmtree, folder, True)

    def _keep(self, model_id: str, snapshot: WeightsSnapshot) -> None:
        kept = self._unnamed.setdefault(model_id, OrderedDict())
        kept[snapshot.version] = snapshot.folder
        while len(kept) > KEPT_SNAPSHOTS:
            _, folder = kept.popitem(last=False)
            shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def _add(session: ClientSession, sampler: ClientSampler) -> ClientSampler:
        session.samplers[sampler.id] = sampler
        while len(session.samplers) > MOST_SAMPLERS:
            session.samplers.popitem(last=False)
        return sampler
