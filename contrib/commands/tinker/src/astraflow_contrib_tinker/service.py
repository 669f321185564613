"""Sessions of clients with their models and samplers."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import secrets
import shutil
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from astraflow_contrib_tinker.audit import ServerAudit
from astraflow_contrib_tinker.sessions import ClientSampler, ClientSession
from astraflow_contrib_tinker.wire.datums import GradientRequest
from astraflow_contrib_tinker.wire.results import Result
from astraflow_contrib_tinker.work.access import CURRENT, ClientKey, Usage, visible
from astraflow_contrib_tinker.work.base import BaseModel
from astraflow_contrib_tinker.work.futures import FailedRequest, Promise, Promises
from astraflow_contrib_tinker.work.kept import KeptModel, Outcome
from astraflow_contrib_tinker.work.links import Links
from astraflow_contrib_tinker.work.ordering import Ordered, digest_of
from astraflow_contrib_tinker.work.sampling import EnginePool, SampleWish, WeightsSnapshot
from astraflow_contrib_tinker.work.store import Kind, Saved, Store, expiry, now
from astraflow_contrib_tinker.work.training import TrainedModel, TrainingThread
from astraflow_core.errors import AstraFlowError, Refused
from astraflow_core.protocols.trainer import AdamWStep
from astraflow_wire.host.disk import replace_file

log = logging.getLogger(__name__)

IDLE_S = 900.0
"""How long a session lives without a heartbeat; clients send one every ten seconds."""
MOST_SESSIONS = 1024
MOST_SAMPLERS = 4096
"""Of one session; the oldest is forgotten."""
KEPT_SNAPSHOTS = 32
"""Unnamed weights for sampling that are kept of a model."""


class Service:
    """All that the server has. To be used in one event loop. With ``keep_every`` sessions and their models are on disk too:
    a state of a model after every ``keep_every`` optimizer steps, and its requests since."""

    def __init__(
        self,
        base: BaseModel,
        store: Store,
        models: int,
        engines: int,
        keep_every: int = 0,
        keys: Mapping[str, ClientKey] | None = None,
    ) -> None:
        self.base, self.store, self.promises = base, store, Promises()
        self.links, self.audit = Links(store), ServerAudit(store.directory)
        self.keep_every, self._keys = keep_every, dict(keys or {})
        self.promises.most_of = {name: key.requests for name, key in self._keys.items()}
        self.usage: defaultdict[str, Usage] = defaultdict(Usage)
        self.computing, self.pool = TrainingThread(), EnginePool(base, engines, 2 * models)
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
        session = ClientSession(secrets.token_hex(8), metadata, time.monotonic(), CURRENT.get())
        self.add_session(session)
        self._write(session)
        return session

    def add_session(self, session: ClientSession) -> None:
        """It is one of the server's, new or as it was kept."""
        self.sessions[session.id] = session
        self.promises.keys[session.id] = session.key

    def session(self, id: str) -> ClientSession:
        """The session, whose time of last contact is updated; :class:`Refused` with 404."""
        found = self.sessions.get(id)
        if found is None or not visible(found.key):
            raise Refused(
                404, f"there is no session {id[:80]!r}: it has ended, or the server has restarted"
            )
        found.seen = time.monotonic()
        return found

    def model(self, id: str) -> TrainedModel:
        """A model; :class:`Refused` with 404."""
        owner = self.sessions.get(id.partition(":")[0])
        found = None if owner is None else owner.models.get(id)
        if owner is None or found is None or not visible(owner.key):
            raise Refused(
                404,
                f"there is no model {id[:120]!r}: it was never created, its session has ended, or the server was restarted; "
                "continue from its last save_state with create_training_client_from_state_with_optimizer",
            )
        owner.seen, found.last_request = time.monotonic(), now()
        return found

    def sampler(self, id: str) -> ClientSampler:
        """A sampler; :class:`Refused` with 404."""
        owner = self.sessions.get(id.partition(":")[0])
        found = None if owner is None else owner.samplers.get(id)
        if owner is None or found is None or not visible(owner.key):
            raise Refused(
                404,
                f"there is no sampling session {id[:120]!r}: it was never created, its session has ended, or the server "
                "was restarted; create a new sampling client",
            )
        owner.seen = time.monotonic()
        return found

    def create_model(
        self,
        session: ClientSession,
        number: int,
        rank: int,
        seed: int | None,
        metadata: dict[str, str],
        load: tuple[str, bool] | None = None,
    ) -> TrainedModel:
        """A model, not yet open. The same number gives the same model. ``load``: the path of the state that it will continue
        from, and whether with the optimizer."""
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
        limit, own = self._keys.get(session.key), self.models_of(session.key)
        if limit is not None and len(own) >= limit.models:
            raise Refused(
                429,
                f"{len(own)} models of your key are trained, as many as it may have; end one of their sessions",
            )
        seed = next(self._seeds) if seed is None else seed
        model = self.add_model(session, number, rank, seed, metadata)
        if model.kept is not None:
            about = {"rank": rank, "seed": seed, "metadata": metadata, "load": load}
            model.kept.create(about)
        return model

    def models_of(self, key: str) -> list[TrainedModel]:
        """The models of a key."""
        sessions = [each for each in self.sessions.values() if each.key == key]
        return [model for session in sessions for model in session.models.values()]

    def add_model(
        self, session: ClientSession, number: int, rank: int, seed: int, metadata: dict[str, str]
    ) -> TrainedModel:
        """A model, new or as it was kept; it works on requests once it was opened."""
        id = f"{session.id}:train:{number}"

        async def watch(number: int, outcome: Outcome | None) -> None:
            await self._watch(model, number, outcome)

        order = Ordered(self.promises, session.id, name=id, watch=watch)
        model = TrainedModel(id, session.id, self.base, rank, seed, order, metadata)
        if self.keep_every:
            model.kept = KeptModel(self.running / session.id / str(number), self.keep_every)
        session.models[id] = model
        return model

    def opened(
        self,
        model: TrainedModel,
        state: Path | None,
        optimizer: bool,
        load: tuple[str, bool] | None,
        new: bool = True,
    ) -> Promise:
        """The promise of an open model, that goes on from ``state`` if there is one; without ``optimizer`` from its weights
        alone. ``load`` is what the client asked for. What was put before is worked on then."""
        told: Result = {"type": "create_model", "model_id": model.id}
        if load is not None:
            told = {"type": "load_weights", "path": load[0], "model_id": model.id}

        async def work() -> Result:
            try:
                await self.computing.do(model.open, state, optimizer)
            except Exception as error:
                if (session := self.sessions.get(model.session)) is not None:
                    session.models.pop(model.id, None)
                model.order.fail(FailedRequest(f"the model cannot be opened: {error}", "server"))
                if model.kept is not None and new:
                    shutil.rmtree(model.kept.folder, ignore_errors=True)
                raise
            model.order.start()
            if new:
                self.audit.note("create_model", {"model": model.id, "state": load and load[0]})
            return told

        promise = self.promises.make(model.session, id=f"{model.id}:0")
        self.promises.start(promise, work)
        return promise

    async def _watch(self, model: TrainedModel, number: int, outcome: Outcome | None) -> None:
        """Keep what a request has made, if a state is due, or that it failed."""
        kept = model.kept
        if kept is None:
            return
        try:
            if isinstance(outcome, FailedRequest):
                kept.fail(number, outcome)
            elif not model.held and (model.loaded or kept.is_due(model.updates)):
                results = model.order.results(kept.next, number)
                await self.computing.do(model.keep_state, kept, number + 1, results)
        except (OSError, AstraFlowError) as error:
            log.warning(
                "%s: no state was kept after request %d: %s; those since the last one are", model.id, number, error
            )  # fmt: skip

    async def gradient(self, model: TrainedModel, request: Callable[[], GradientRequest]) -> Result:
        """Work of ``forward_backward``; ``request`` reads what is asked for."""
        key = self.promises.keys[model.session]

        def work() -> Result:
            started, asked = time.monotonic(), request()
            result, used = model.gradient(asked), self.usage[key]
            tokens = sum(array.size for array in result.logprobs)
            if asked.backward:
                used.forward_backward_tokens += tokens
            else:
                used.forward_tokens += tokens
            used.training_s += time.monotonic() - started
            return result

        return await self.computing.do(work)

    async def step(self, model: TrainedModel, settings: AdamWStep) -> Result:
        """Work of ``optim_step``."""
        result = await self.computing.do(model.step, settings)
        self.usage[self.promises.keys[model.session]].optimizer_steps += 1
        return result

    async def save(
        self,
        model: TrainedModel,
        kind: Kind,
        name: str | None,
        overwrite: bool,
        request: int = 0,
        ttl_seconds: int | None = None,
    ) -> Saved:
        """Save a state or weights by name; without a name one that is not in use. ``request`` is the number of the request:
        what it has saved before is not saved again. It is on the disk when this returns."""
        made = self.store.made_by(model.id, kind, name, request)
        if made is not None:
            return made
        key = self.promises.keys.get(model.session, "")
        limit, used = self._keys.get(key), self.store.used_by(key)
        if limit is not None and used >= limit.disk_bytes:
            raise Refused(
                400,
                f"your key has saved {used >> 20} MiB, as much as it may: delete some (RestClient, delete_checkpoint)",
            )
        version = next(self._versions)
        name = name or f"{version:06d}-{secrets.token_hex(3)}"
        folder = self.store.begin(model.id, kind, name, overwrite)
        try:
            await self.computing.do(model.write, kind, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        about = (self.base.name, model.lora_rank, version, now(), 0, request, key)
        saved = Saved(model.id, kind, name, *about, expiry(ttl_seconds))
        return await asyncio.to_thread(self.store.finish, folder, saved)

    async def snapshot(self, model: TrainedModel, number: int, follow: bool) -> ClientSampler:
        """A sampler of the weights of now; those that follow this model get them too."""
        version, session = next(self._versions), self.session(model.session)
        folder = self.snapshots_of(session.id) / str(version)
        folder.mkdir(parents=True)
        await self.computing.do(model.save_for_sampling, folder)
        snapshot = WeightsSnapshot(version, folder)
        self.keep_snapshot(model.id, snapshot)
        if follow:
            for each in session.samplers.values():
                if each.follows and each.model == model.id:
                    each.snapshot = snapshot
        id = f"{session.id}:sample:{number}"
        return self.add_sampler(session, ClientSampler(id, snapshot, None, model.id, follow))

    def create_sampler(
        self, session: ClientSession, number: int, path: str | None
    ) -> ClientSampler:
        """A sampler of saved weights, or of the base model."""
        id = f"{session.id}:sample:{number}"
        if id in session.samplers:
            return session.samplers[id]
        if path is None:
            base = WeightsSnapshot(0, self.base.folder)
            return self.add_sampler(session, ClientSampler(id, base))
        _, folder = self.store.find(path, "sampler_weights")
        # A number of this server's life: a folder may be from an earlier one, or have been written again.
        about = (folder / "about.json").stat()
        key = f"{folder}:{about.st_mtime_ns}:{about.st_ino}"
        if key not in self._saved_versions:
            self._saved_versions[key] = next(self._versions)
        snapshot = WeightsSnapshot(self._saved_versions[key], folder)
        return self.add_sampler(session, ClientSampler(id, snapshot, path))

    def sample(
        self, sampler: ClientSampler, number: int | None, body: bytes, wish: SampleWish
    ) -> tuple[Promise, list[str]]:
        """The promise of samples and an id for each, which names the version that samples it. A repeated number gives
        what it gave before; :class:`Refused` if another request, another ``body``, had it."""
        digest = digest_of(body)
        if number is not None and number in sampler.made:
            known, promise, ids = sampler.made[number]
            if known != digest:
                raise Refused(400, f"seq_id {number} was given to another request of this sampler")
            return promise, ids
        promise = self.promises.make(sampler.id.partition(":")[0], len(body))
        snapshot = sampler.snapshot
        ids = [f"v{snapshot.version}-{promise.id}-{place}" for place in range(wish.count)]
        key = self.promises.keys[sampler.id.partition(":")[0]]

        async def work() -> Result:
            result, used = await self.pool.sample(snapshot, wish), self.usage[key]
            used.prompt_tokens += len(wish.prompt)
            used.sampled_tokens += sum(len(each.tokens) for each in result.sequences)
            return result

        self.promises.start(promise, work)
        if number is not None:
            sampler.made[number] = digest, promise, ids
            while len(sampler.made) > MOST_SAMPLERS:
                sampler.made.popitem(last=False)
        return promise, ids

    async def remove_model(self, id: str) -> None:
        """End one model: its requests fail, its memory is free, and a server that starts again has it no more. What was saved of
        it and its samplers stay. :class:`Refused` with 404."""
        model = self.model(id)
        del self.sessions[model.session].models[id]
        gone = FailedRequest(f"the model {id} was removed while the request waited", "user")
        model.order.fail(gone)
        await self.computing.do(model.close)
        if model.kept is not None:
            await asyncio.to_thread(shutil.rmtree, model.kept.folder, True)

    def end(self, session: ClientSession, forget: bool = True) -> None:
        """End a session: its requests are cancelled, its models and unnamed weights removed; on disk they are unless this is
        to ``forget`` it."""
        self.sessions.pop(session.id, None)
        for model in session.models.values():
            model.order.close()
        self.promises.forget(session.id)
        self.promises.keys.pop(session.id, None)
        closing = asyncio.ensure_future(self._close(session, forget))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def end_idle(self) -> None:
        """End the sessions of clients that have disappeared."""
        oldest = time.monotonic() - IDLE_S
        for session in [s for s in self.sessions.values() if s.seen < oldest]:
            if session.models:
                self.audit.note(
                    "no heartbeat", {"session": session.id, "models": list(session.models)}
                )
            self.end(session)

    async def close(self) -> None:
        """End everything; what is on disk stays."""
        for session in list(self.sessions.values()):
            self.end(session, forget=False)
        await asyncio.gather(*self._closing)
        await self.pool.close()
        await asyncio.to_thread(self.computing.close)

    @property
    def running(self) -> Path:
        """Where sessions are kept."""
        return self.store.directory / "running"

    def snapshots_of(self, session_id: str) -> Path:
        """Where unnamed weights are, in folders that are named by their versions."""
        if self.keep_every:
            return self.running / session_id / "snapshots"
        return self.base.scratch / "snapshots" / session_id

    def skip_versions(self, last: int) -> None:
        """Give no version up to ``last`` again."""
        self._versions = itertools.count(max(last + 1, next(self._versions)))

    def keep_snapshot(self, model_id: str, snapshot: WeightsSnapshot) -> None:
        """It is one of the newest of its model; older ones than the bound allows are removed."""
        kept = self._unnamed.setdefault(model_id, OrderedDict())
        kept[snapshot.version] = snapshot.folder
        while len(kept) > KEPT_SNAPSHOTS:
            _, folder = kept.popitem(last=False)
            shutil.rmtree(folder, ignore_errors=True)

    def add_sampler(self, session: ClientSession, sampler: ClientSampler) -> ClientSampler:
        """A session has it from now on."""
        session.samplers[sampler.id] = sampler
        while len(session.samplers) > MOST_SAMPLERS:
            session.samplers.popitem(last=False)
        self._write(session)
        return sampler

    async def _close(self, session: ClientSession, forget: bool) -> None:
        for model in session.models.values():
            await self.computing.do(model.close)
            self._unnamed.pop(model.id, None)
        if forget:
            await asyncio.to_thread(shutil.rmtree, self.snapshots_of(session.id), True)
            await asyncio.to_thread(shutil.rmtree, self.running / session.id, True)

    def _write(self, session: ClientSession) -> None:
        """Keep a session and those of its samplers whose weights are there."""
        if not self.keep_every:
            return
        samplers = [
            {"id": each.id, "version": each.snapshot.version, "path": each.model_path, "model": each.model, "follows": each.follows}
            for each in session.samplers.values()
            if each.snapshot.folder.is_dir()
        ]  # fmt: skip
        about = {
            "base": self.base.name,
            "key": session.key,
            "metadata": session.metadata,
            "samplers": samplers,
        }
        folder = self.running / session.id
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "session.json", json.dumps(about) + "\n")
