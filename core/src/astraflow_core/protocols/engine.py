"""Engine: turns token ids into sampled token ids; lives in an engine host, one policy each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from astraflow_core.types import (
    Bucket,
    GenerateRequest,
    GenerateResult,
    Images,
    LogprobSemantics,
    Rendezvous,
    WeightSource,
)

PauseMode = Literal["keep", "wait", "abort"]


class Engine(Protocol):
    """An inference engine. All methods run on the engine host's event loop and must not block it.

    Built as ``factory(config, context)``; nothing heavy happens before :meth:`start`. Any call may raise
    :class:`astraflow_core.errors.EngineLost` when the engine can no longer serve: its host is then restarted, and running
    requests are retried."""

    @property
    def logprob_semantics(self) -> LogprobSemantics:
        """What the log-probs of results mean; constant for the life of the engine."""

    @property
    def context_length(self) -> int:
        """The maximum number of tokens of a sequence, prompt and completion together."""

    async def start(self, model: Path) -> None:
        """Load the architecture and the initial weights (version 0) from a Hugging Face folder."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Sample one sequence; many calls run at once. Each token carries the version that sampled it.

        Raises :class:`ValueError` if the prompt is empty or prompt + ``max_tokens`` exceed :attr:`context_length`, and
        :class:`astraflow_core.errors.WrongVersion` if a pinned request cannot be met exactly or its ``adapter`` is not loaded.
        A request ends when its caller is cancelled."""

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Raw log-probs (temperature 1, no truncation) of int32 ``[T]``: float32 ``[T]``, the first is 0."""

    async def pause(self, mode: PauseMode) -> None:
        """Stop decoding. ``keep`` freezes requests in place, ``wait`` drains those that run, ``abort`` returns partial results with
        ``finish_reason="abort"``. Requests that arrive while paused wait. Returns when no decoding step is running. Pausing a
        paused engine is allowed."""

    async def resume(self) -> None:
        """Continue decoding; frozen requests continue at their next token with the weights now loaded."""

    async def abort(self, ids: list[str]) -> None:
        """End the named requests early; their results come back with ``finish_reason="abort"``."""

    async def load_weights(self, source: WeightSource) -> None:
        """Replace the weights by a verified version; called while paused. Checks every name, shape and dtype before it changes
        anything: :class:`astraflow_core.errors.WeightsError` if they do not fit, and the old version stays loaded and usable.
        Requests frozen by ``keep`` continue on the KV cache that they have."""

    async def sleep(self, level: int) -> None:
        """Release memory (1: caches, 2: weights too); only with capability ``sleep``."""

    async def wake(self) -> None:
        """Undo :meth:`sleep`; weights are loaded again after level 2."""

    async def health(self) -> dict[str, float]:
        """Gauges and counters: at least ``running``, ``waiting``, ``version``, ``tokens_generated``, ``prompt_tokens``,
        ``decode_seconds``. If known, ``max_running`` (requests at once) and ``kv_cache_usage`` (a share), by which a RaaS routes
        requests and limits its episodes."""

    async def close(self) -> None:
        """End all requests and free everything; further calls are errors."""


class ReadsImages(Protocol):
    """Additional members of an :class:`Engine` with capability ``images``."""

    async def score_images(
        self, tokens: npt.NDArray[np.int32], images: Images
    ) -> npt.NDArray[np.float32]:
        """As :meth:`Engine.score`, for tokens with placeholders of ``images``."""


class ServesAdapters(Protocol):
    """Additional members of an :class:`Engine` with capability ``adapters``: at most ``most_adapters``, 0 if its keys allow none."""

    most_adapters: int

    async def load_adapter(self, name: str, source: WeightSource | None) -> None:
        """Serve an adapter of the loaded base under ``name``, or none, while requests run; each keeps the one with which it began.
        :class:`astraflow_core.errors.WeightsError` if it does not fit. :meth:`Engine.load_weights` drops them all."""

    async def score_adapter(
        self, name: str, tokens: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """As :meth:`Engine.score`, with an adapter."""


class DirectEngine(Engine, Protocol):
    """An engine with capability ``weights.collective`` or ``weights.ipc``: versions may come from the trainer's memory."""

    @property
    def workers(self) -> int:
        """How many of its processes participate in a broadcast; 0 if none can. Constant after :meth:`start`."""

    async def join(self, rendezvous: Rendezvous) -> None:
        """Join a broadcast (capability ``weights.collective``), while requests run. Returns when all
        its ranks have joined; raises :class:`astraflow_core.errors.WeightsError` that names those that are missing."""

    async def receive(self, version: int, buckets: Sequence[Bucket]) -> None:
        """As :meth:`load_weights`, for a version that is broadcast to the group joined last, or lies in memory to be mapped
        (capability ``weights.ipc``). Each bucket's digest is compared before any of it is used. If one is corrupt or missing:
        :class:`astraflow_core.errors.WeightsError`, and the old version stays usable, or :class:`astraflow_core.errors.EngineLost`."""
