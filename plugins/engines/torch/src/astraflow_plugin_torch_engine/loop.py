"""The decoding thread: takes requests in, decodes all running ones a token at a time, hands results out.

Everything that touches the model, the cache or the batch happens in this thread, between two steps:
a pause, a swap of weights or an abort is a command that it carries out there. So none of it needs a lock.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from astraflow_core.errors import EngineLost
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.types import Images, WeightSource
from astraflow_plugin_torch_engine.adapters import AdapterBase, AdapterMerger
from astraflow_plugin_torch_engine.admission import next_jobs
from astraflow_plugin_torch_engine.batch import DecodingBatch, Job, Pending
from astraflow_plugin_torch_engine.cache import Entries, KVPool
from astraflow_plugin_torch_engine.config import TorchEngineConfig
from astraflow_plugin_torch_engine.live_versions import LiveVersions
from astraflow_plugin_torch_engine.model import CausalModel
from astraflow_plugin_torch_engine.sampling import sample
from astraflow_plugin_torch_engine.speculation.drafts import Speculation
from astraflow_plugin_torch_engine.speculation.packed import can_pack, verify
from astraflow_plugin_torch_engine.stacked_adapters import PreparedAdapter, StackedAdapters
from astraflow_plugin_torch_engine.weights import load_tensors, load_weights

_WORTH_A_PREFILL = 0.25
_MOST_STEPS_HELD_BACK = 4
_COUNTERS = (
    *("tokens_generated", "prompt_tokens", "prefill_tokens"),
    *("steps", "decoded_rows", "accepted_tokens"),
)
log = logging.getLogger(__name__)


class DecodeLoop:
    """Owns the model after its thread has started; all public methods may be called from any thread."""

    def __init__(
        self,
        model: CausalModel,
        config: TorchEngineConfig,
        seed: int,
        events: asyncio.AbstractEventLoop,
    ) -> None:
        self.model = model
        self.version = 0
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.seconds = {"decode_seconds": 0.0, "prefill_seconds": 0.0}
        base = AdapterBase(model.folder)
        self._adapters = AdapterMerger(base, model.module)
        self.named = StackedAdapters(
            base, model.module, model.device, lambda: self._batch.rows["adapter"]
        )
        self._config = config
        self.pending = Pending(events)
        self._batch = DecodingBatch(config.max_batch, model.eos, seed)
        self._live = LiveVersions(config.live_adapters, self.named, self._batch)
        self.speculation: Speculation | None = None
        if config.speculation == "history" and can_pack(model.module):
            alone = model.device.type == "cpu" and config.threads == 1
            self.speculation = Speculation(config.max_batch, config.history_tokens, alone)
        self._pool = KVPool()
        self._inbox: deque[Job | tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._waiting: list[tuple[int, int, Job]] = []
        self._arrivals = 0
        self._held_back = 0
        self._wake = threading.Event()
        self._mode: PauseMode | None = None
        self._pausing: list[asyncio.Future[Any]] = []
        self._open = True
        self._thread = threading.Thread(target=self._run, name="torch-engine", daemon=True)
        self._thread.start()

    # From any thread

    def submit(self, item: Job | tuple[Callable[[], Any], asyncio.Future[Any]]) -> None:
        """Hand over a request, or a command with the future of its value, carried out between two steps. Raises
        :class:`EngineLost` once the thread has failed; to be called in the event loop."""
        self.pending.expect(item.future if isinstance(item, Job) else item[1])
        self._inbox.append(item)
        if not self._wake.is_set():
            self._wake.set()

    def gauges(self) -> dict[str, float]:
        """What :meth:`TorchEngine.health` reports; :class:`EngineLost` once the thread has failed."""
        self.pending.check()
        running = self._batch.size
        waiting = len(self._waiting) + len(self._inbox)
        return {
            "running": running,
            "waiting": waiting,
            "version": self.version,
            **self.counters,
            **({} if self.speculation is None else self.speculation.counters),
            **self.seconds,
            **self._live.gauges,
        }

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; whether it did."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # Commands, carried out by the thread

    def pause(self, mode: PauseMode, done: asyncio.Future[Any]) -> None:
        """See the protocol. Requests not admitted yet have nothing to return and wait in every mode."""
        self._mode = mode
        if mode == "abort":
            self._end(np.arange(self._batch.size), np.zeros(self._batch.size, bool), "abort")
        self._pausing.append(done)

    def resume(self) -> None:
        """Decode again; a pause that still drains is over too."""
        self._mode = None
        self._finish_pausing()

    def abort(self, ids: frozenset[str]) -> None:
        """End the named requests, running or waiting."""
        named = [row for row, job in enumerate(self._batch.jobs) if job.request.id in ids]
        self._end(np.array(named, dtype=np.int64), np.zeros(len(named), bool), "abort")
        keep = [entry for entry in self._waiting if entry[2].request.id not in ids]
        for *_, job in self._waiting:
            if job.request.id in ids:
                self.pending.settled.append((job.future, job.nothing))
        heapq.heapify(keep)
        self._waiting = keep

    def load(self, source: WeightSource, beside: PreparedAdapter | None) -> None:
        """Swap the weights, or lay an adapter ``beside`` them; what is pinned to a lost version ends with :class:`WrongVersion`."""
        if beside is not None:
            self._adapters.check(beside.base, beside.version)
        elif source.kind == "adapter":
            self._adapters.load(source)
        else:
            load_weights(self.model.module, source.path)
            self._adapters.rebase(source.digest)
        self._supersede(source.version, beside)

    def load_received(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """As :meth:`load`, of a whole version that is in memory."""
        load_tensors(self.model.module, f"version {version}", tensors)
        self._adapters.rebase("")
        self._supersede(version)

    def name_adapter(self, name: str, adapter: PreparedAdapter | None) -> None:
        """Give ``name`` to an adapter, or to none. Those that run keep theirs."""
        if adapter is not None:
            self._adapters.check(adapter.base, adapter.version)
        self.named.install(name, adapter)

    def score(
        self, tokens: npt.NDArray[np.int32], images: Images = (), adapter: str = ""
    ) -> npt.NDArray[np.float32]:
        """As the model scores, with the adapter of that name or of the newest version."""
        with self.named.using(np.array(self.named.held(adapter)[:1])):
            return self.model.score(tokens, images)

    def _supersede(self, version: int, beside: PreparedAdapter | None = None) -> None:
        self.version = version
        self.named.clear()
        self._live.advance(version, beside)
        torn = [row for row, job in enumerate(self._batch.jobs) if self._refused(job, job.version)]
        self._drop(np.array(torn, dtype=np.int64))

    def stop(self) -> None:
        """End every request and the thread; the last command."""
        jobs = self._batch.jobs + [entry[2] for entry in self._waiting]
        self.abort(frozenset(job.request.id for job in jobs))
        self._finish_pausing()
        self._open = False

    # The thread

    def _run(self) -> None:
        torch.set_num_threads(self._config.threads)
        try:
            with torch.inference_mode():
                self._serve()
        except BaseException as error:
            log.exception("the decoding thread failed")
            self._lose(EngineLost(f"engine 'torch': its decoding thread failed: {error!r}"))

    def _serve(self) -> None:
        while self._open:
            if self._mode is None:
                self._admit()
            if self._batch.size and self._mode in (None, "wait"):
                self._step()
            else:
                self._finish_pausing()
            self.pending.hand_out()
            if not self._busy():
                self._wake.wait()
            self._accept_requests()
        self.pending.hand_out()
        self._pool.clear()

    def _busy(self) -> bool:
        """Whether there is anything to do before the next request or command arrives."""
        if self._mode is None:
            return bool(self._batch.size or self._waiting or self.pending.settled)
        return bool(self._pausing or self.pending.settled)

    def _accept_requests(self) -> None:
        self._wake.clear()
        while self._inbox:
            item = self._inbox.popleft()
            future = item.future if isinstance(item, Job) else item[1]
            try:
                if isinstance(item, Job):
                    self._accept(item)
                else:
                    self.pending.settled.append((future, item[0]()))
            except Exception as error:  # noqa: BLE001 (raised where the future is awaited)
                self.pending.settled.append((future, error))

    def _accept(self, job: Job) -> None:
        self._arrivals += 1
        job.number = self._arrivals
        self._batch.read(job)
        heapq.heappush(self._waiting, (job.request.priority, self._arrivals, job))

    def _admit(self) -> None:
        """Prefill the next waiting requests, as many as one forward pass and the cache allow.

        Since those that run stand still meanwhile, a few requests wait a few steps for company.
        """
        running = self._batch.size
        joining = min(len(self._waiting), self._config.max_batch - running)
        if joining < running * _WORTH_A_PREFILL and self._held_back < _MOST_STEPS_HELD_BACK:
            self._held_back += 1
            return
        self._held_back = 0
        jobs, prompts = next_jobs(
            self._waiting, self._batch, self.model, self._config.max_prefill_tokens, self._begins
        )
        if not jobs:
            return
        started = time.perf_counter()
        first = self._batch.size
        try:
            self._batch.add(jobs)
        except Exception as error:  # noqa: BLE001 (raised where the requests are awaited)
            self.pending.settled.extend((job.future, error) for job in jobs)
            return
        try:
            if self.speculation is not None:
                self.speculation.begin(self._batch, jobs, first)
            order = {key: number for number, key in enumerate(prompts)}
            source = np.array([order[job.prompt_key] for job in jobs])
            index = self.model.tensor(source)
            logits, fresh = self._prefill(first, list(prompts.values()), source)
            self._pool.store(first, fresh, index)
            self._sample(logits[index], first)
        except Exception as error:  # noqa: BLE001 (raised where the requests are awaited)
            self._fail(error)
        self.counters["prompt_tokens"] += sum(len(job.request.prompt) for job in jobs)
        self.counters["prefill_tokens"] += sum(len(prompt) for prompt in prompts.values())
        self.seconds["prefill_seconds"] += time.perf_counter() - started

    def _prefill(
        self,
        first: int,
        prompts: list[npt.NDArray[np.int32]],
        source: npt.NDArray[np.int64],
    ) -> tuple[torch.Tensor, list[Entries]]:
        jobs = self._batch.jobs[first:]
        images: list[Images] = [()] * len(prompts)
        adapters = np.zeros(len(prompts), np.int64)
        for job, number in zip(jobs, source.tolist(), strict=True):
            images[number], adapters[number] = job.request.images, job.adapter
        with self.named.using(adapters):
            if not any(job.request.routing for job in jobs):
                return self.model.prefill(prompts, images)
            found, routed = self.model.recorder.during(lambda: self.model.prefill(prompts, images))
        self._batch.record_prompts(
            first, routed.reshape(len(prompts), -1, *routed.shape[1:]), source
        )
        return found

    def _decode(self) -> torch.Tensor:
        rows, model = self._batch.rows, self.model
        pending, positions = rows["pending"].copy(), rows["position"].copy()
        with self.named.using(rows["adapter"]):
            if not self._batch.recorded:
                return model.decode(pending, positions, self._pool)
            logits, routed = model.recorder.during(
                lambda: model.decode(pending, positions, self._pool)
            )
        self._batch.record_experts(routed)
        return logits

    def _step(self) -> None:
        started = time.perf_counter()
        self.counters["decoded_rows"] += self._batch.size
        try:
            if self.speculation is None or self._batch.recorded:
                self._sample(self._decode(), 0)
            else:
                self._speculate(self.speculation)
        except Exception as error:  # noqa: BLE001 (raised where the requests are awaited)
            self._fail(error)
        self.counters["steps"] += 1
        self.seconds["decode_seconds"] += time.perf_counter() - started

    def _speculate(self, speculation: Speculation) -> None:
        """A step with drafts, if they are worth it. What looking for them took counts against them."""
        started = speculation.clock()
        drafts = speculation.drafts(self._batch)
        if drafts is None:
            started = speculation.clock()
            sampled = self._sample(self._decode(), 0)
        else:
            sampled = self._verify(drafts)
        speculation.observe(sampled, drafts, speculation.clock() - started)

    def _verify(self, drafts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Give each row the tokens of its draft that are right, and one more. ``drafts``: int64 ``[n, k]``, -1 behind the end
        of a draft. Returns what was sampled at each place, int64 ``[n, 1 + k]``, -1 where nothing was.

        Each place is sampled by itself from its own distribution; a row goes on to the next place while what was sampled is
        what the draft has there. So drafts change how many tokens one forward pass gives, and not which.
        """
        rows = self._batch.rows
        counts = 1 + (drafts >= 0).sum(1)
        row = np.repeat(np.arange(len(rows)), counts)
        place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        tokens = np.concatenate([rows["pending"][:, None], drafts], axis=1)[row, place]
        records = rows[row]
        with self.named.using(records["adapter"], packed=True):
            logits = verify(self.model, tokens, row, records["position"] + place, self._pool)
        records["count"] += place
        chosen, values = sample(logits, records)
        sampled = np.full((len(rows), 1 + drafts.shape[1]), -1, np.int64)
        logprobs = np.zeros(sampled.shape, np.float32)
        sampled[row, place], logprobs[row, place] = chosen.cpu().numpy(), values.cpu().numpy()
        self._record(0, sampled, logprobs, drafts)
        return sampled

    def _sample(self, logits: torch.Tensor, first: int) -> npt.NDArray[np.int64]:
        """Give the rows from ``first`` on their next token and end those that are done. Returns what was sampled, int64
        ``[n, 1]``."""
        tokens, logprobs = sample(logits, self._batch.rows[first:])
        sampled = tokens.cpu().numpy()[:, None]
        self._record(first, sampled, logprobs.cpu().numpy()[:, None], sampled[:, :0])
        return sampled

    def _record(
        self,
        first: int,
        sampled: npt.NDArray[np.int64],
        logprobs: npt.NDArray[np.float32],
        drafts: npt.NDArray[np.int64],
    ) -> None:
        live = np.arange(len(sampled))
        ends = []
        for place in range(sampled.shape[1]):
            if place:
                live = live[sampled[live, place - 1] == drafts[live, place - 1]]
                if not len(live):
                    break
                self.counters["accepted_tokens"] += len(live)
            finite = np.isfinite(logprobs[live, place])
            if not finite.all():
                ends.append((first + live[~finite], finite[~finite]))
                self._batch.diverged(ends[-1][0], self.version)
                live = live[finite]
            self.counters["tokens_generated"] += len(live)
            ended, stopped = self._batch.record(
                first + live, sampled[live, place], logprobs[live, place], self.version
            )
            if len(ended):
                ends.append((ended, stopped))
                live = live[~np.isin(first + live, ended)]
        if ends:
            rows, stops = (np.concatenate(parts) for parts in zip(*ends, strict=True))
            self._end(rows, stops, "length")

    def _end(
        self,
        rows: npt.NDArray[np.int64],
        stopped: npt.NDArray[np.bool_],
        otherwise: Literal["length", "abort"],
    ) -> None:
        for row, stop in zip(rows.tolist(), stopped.tolist(), strict=True):
            job, result = (
                self._batch.jobs[row],
                self._batch.result(row, "stop" if stop else otherwise),
            )
            self.pending.settled.append((job.future, job.error or result))
        self._drop(rows)

    def _drop(self, rows: npt.NDArray[np.int64]) -> None:
        if len(rows) and self.speculation is not None:
            self.speculation.remove(self._batch, rows)
        unclean = self.named.known or any(self._batch.jobs[row].error for row in rows.tolist())
        movers, holes = self._batch.remove(rows)
        if len(movers) and self.speculation is not None:
            self.speculation.move(movers, holes)
        columns = int(self._batch.rows["position"][holes].max(initial=0))
        moved = [self.model.tensor(each) for each in (rows, movers, holes)]
        self._pool.remove(moved, columns, unclean)
        self._live.forget()

    def _fail(self, error: Exception) -> None:
        """A pass failed (out of memory, non-finite logits): its requests end with the error, and the
        cache, which may hold anything now, is dropped."""
        for job in self._batch.jobs:
            self.pending.settled.append((job.future, error))
        self._batch.remove(np.arange(self._batch.size))
        self._live.forget()
        self._pool.clear()

    def _begins(self, job: Job) -> bool:
        """Whether a request that waited can begin; it does with the adapter that has its name now."""
        if self._refused(job, -1):
            return False
        job.adapter, job.version = self.named.held(job.request.adapter)
        return True

    def _refused(self, job: Job, version: int) -> bool:
        """Whether a request cannot be served; it then gets the error. ``version``: that it keeps, -1 for none."""
        problem = self.named.refusal(job.request, self.version if version < 0 else version)
        if problem is not None:
            self.pending.settled.append((job.future, problem))
        return problem is not None

    def _finish_pausing(self) -> None:
        self.pending.settled.extend((future, None) for future in self._pausing)
        self._pausing.clear()

    def _lose(self, error: EngineLost) -> None:
        """The thread ends, and no call goes unanswered."""
        self.pending.settled.extend((future, error) for future in self._pausing)
        self.pending.lose(error)
