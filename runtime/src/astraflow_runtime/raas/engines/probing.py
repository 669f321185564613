"""Probes in a RaaS: the engine's log-probs of the rows that came with a version, and whether new weights moved them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError, RunFailed, UserError, WireError
from astraflow_core.types import Images
from astraflow_core.types.generation import images_between
from astraflow_runtime.logprob_gap import Floats, Gap, gap
from astraflow_runtime.raas.engines.colocation import OWN_DEVICES, Devices
from astraflow_runtime.raas.engines.host_client import HostClient
from astraflow_runtime.raas.engines.replica import Replica
from astraflow_runtime.raas.engines.replicas import Replicas
from astraflow_runtime.raas.engines.supervised_engine import SupervisedEngine
from astraflow_wire.images.table import decode
from astraflow_wire.messages import AnnouncementMessage, Probe

log = logging.getLogger("astraflow.raas")


STILL = 0.1
"""The share of the trainer's movement below which an engine has not moved."""
LEAST_MOVED = 1e-4
"""Nats. A trainer that has moved less says nothing about an engine."""
MOST_DUE = 8
"""The number of newest versions of a policy whose probes are kept until a replica serves them."""
MOST_STILL = 2
"""Probes in a row for which the engine of a replica may not move, before its RaaS gives up."""


@dataclass(frozen=True, slots=True)
class _Scored:
    """What an engine gave for the rows of the probe of ``version``."""

    version: int
    asked: Probe
    logprobs: list[Floats]


class Probes:
    """Compares the log-probs of engine and trainer whenever a version comes with a probe, for each replica of its policy
    that serves exactly that version. If none does, the probe is skipped. A replica is probed before it loads another
    version (:meth:`before_swap`), so that a run of short updates is probed too. ``measured`` is called after each.

    It also scores the rows of the last probe again. An engine whose log-probs of them did not move, where the trainer's
    did, still computes with the earlier weights, whatever it reports: its host is killed, so that the next one loads
    all weights anew. If that happens :data:`MOST_STILL` times in a row, :meth:`run` raises :class:`RunFailed`.

    ``exact``: the policies whose engine and trainer are to agree bitwise; it raises :class:`UserError` if one does not, since no
    restart brings another order of sums.
    """

    def __init__(
        self,
        replicas: Mapping[str, Replicas],
        deadline_s: float,
        devices: Devices = OWN_DEVICES,
        exact: frozenset[str] = frozenset(),
    ) -> None:
        self._replicas, self._deadline_s, self._devices = replicas, deadline_s, devices
        self._exact = exact
        self.measured: Callable[[], None] = lambda: None
        self._due: dict[str, dict[int, AnnouncementMessage]] = {policy: {} for policy in replicas}
        self._done: dict[SupervisedEngine, int] = {}
        self._turns: defaultdict[SupervisedEngine, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._measured: dict[str, dict[int, Gap]] = {}
        self._version: dict[str, int] = {}
        self._scored: dict[SupervisedEngine, _Scored] = {}
        self._still: Counter[SupervisedEngine] = Counter()
        self._changed = asyncio.Event()

    def on_announced(self, announcement: AnnouncementMessage) -> None:
        """Record an announced version."""
        if announcement.probe is not None:
            try:
                columns_of(announcement.probe)
                images_of(announcement.probe)
            except WireError as error:
                log.warning(
                    "version %d of policy %r is not probed: %s",
                    announcement.version,
                    announcement.policy,
                    error,
                )
                return
            due = self._due[announcement.policy]
            due[announcement.version] = announcement
            for version in sorted(due)[:-MOST_DUE]:
                del due[version]
            self.changed()

    def discard(self, policy: str) -> None:
        """Forget the probes of a policy: its versions so far are not of this run."""
        self._due[policy].clear()
        self._measured.pop(policy, None)
        self._version.pop(policy, None)
        for replica in self._replicas[policy].members:
            self._scored.pop(replica.engine, None)
            self._done.pop(replica.engine, None)

    def changed(self) -> None:
        """Another version may be served."""
        self._changed.set()

    def figures(self) -> dict[str, float]:
        """The last gap of each policy, of the replica that is furthest from the trainer."""
        found: dict[str, float] = {}
        for policy, gaps in self._measured.items():
            worst = max(gaps.values(), key=lambda each: each.mean)
            found |= {
                f"{policy}/probe_version": float(self._version[policy]),
                f"{policy}/probe_mean": worst.mean,
                f"{policy}/probe_largest": worst.largest,
            }
        return found

    async def run(self) -> None:
        """Measure until cancelled; :class:`RunFailed` if new weights do not reach an engine, :class:`UserError` if
        log-probs that are to be equal are not."""
        while True:
            self._changed.clear()
            for policy, replicas in self._replicas.items():
                for replica in replicas.members:
                    await self._probe_if_due(policy, replica)
            await self._changed.wait()

    async def before_swap(self, policy: str, number: int) -> None:
        """Probe a replica that is about to load another version, if the one that it serves came with a probe and was not
        probed yet; raises as :meth:`run` does."""
        if (replicas := self._replicas.get(policy)) is not None:
            await self._probe_if_due(policy, replicas.members[number])

    async def _probe_if_due(self, policy: str, replica: Replica) -> None:
        if self._due_now(policy, replica) is None:
            return
        async with self._devices.use(), self._turns[replica.engine]:
            if (announcement := self._due_now(policy, replica)) is not None:
                await self._probe(replica, announcement)

    def _due_now(self, policy: str, replica: Replica) -> AnnouncementMessage | None:
        version = replica.serving()
        if version is None or version == self._done.get(replica.engine):
            return None
        return self._due[policy].get(version) if replica.can_take(None) else None

    async def _probe(self, replica: Replica, announcement: AnnouncementMessage) -> None:
        version, policy, asked = announcement.version, announcement.policy, announcement.probe
        assert asked is not None
        engine, before = replica.engine, self._scored.get(replica.engine)
        if before is not None and before.version != asked.since:
            before = None
        try:
            client = engine.running().client
            logprobs = await self._score(client, asked)
            again = await self._score(client, before.asked) if before is not None else []
        except (AstraFlowError, ValueError) as error:
            log.warning("version %d of %s was not probed: %s", version, engine.label, error)
            return
        if replica.serving() != version:
            return  # swapped meanwhile: some tokens are of another version
        self._scored[engine] = _Scored(version, asked, logprobs)
        found = gap(logprobs, _sampled(asked, columns_of(asked)[2]))
        log.info(
            "version %d of %s: log-probs of engine and trainer differ by %s",
            version,
            engine.label,
            found,
        )
        self._done[engine] = version
        if self._version.get(policy, -1) < version:
            self._measured[policy], self._version[policy] = {}, version
        if self._version[policy] == version:
            self._measured[policy][replica.number] = found
            self.measured()
        if policy in self._exact and found.largest != 0:
            raise UserError(_inexact(engine.label, version, found, asked))
        if before is not None and asked.moved >= LEAST_MOVED:
            self._check_arrived(engine, version, before, gap(again, before.logprobs).mean, asked)

    def _check_arrived(
        self, engine: SupervisedEngine, version: int, before: _Scored, moved: float, asked: Probe
    ) -> None:
        if moved >= STILL * asked.moved:
            self._still.pop(engine, None)
            return
        self._still[engine] += 1
        reason = (
            f"the weights of version {version} did not reach the engine of {engine.label}: since version "
            f"{before.version} its log-probs of the same tokens moved by {moved:.2g} nats, the trainer's by "
            f"{asked.moved:.2g}"
        )
        if self._still[engine] >= MOST_STILL:
            raise RunFailed(
                f"{reason}; a restart did not help. Run the engine's conformance suite, and check "
                "what its load_weights does"
            )
        log.error("%s; its host is restarted", reason)
        del self._scored[engine]
        engine.running().kill(f"computed with the weights of version {before.version}")

    async def _score(self, client: HostClient, asked: Probe) -> list[Floats]:
        """The engine's log-probs of the sampled tokens, by row."""
        tokens, sampled, _ = columns_of(asked)
        images = images_of(asked)
        found: list[Floats] = []
        start = 0
        for length in asked.lengths:
            row = slice(start, start + length)
            seen = images_between(images, start, row.stop, 0)
            scored = await client.score(tokens[row], self._deadline_s, seen)
            found.append(scored[sampled[row]])
            start += length
        return found


def _inexact(who: str, version: int, found: Gap, asked: Probe) -> str:
    sampled, start = columns_of(asked)[1], sum(asked.lengths[: found.row])
    position = int(np.flatnonzero(sampled[start:])[found.position])
    return (
        f"log-probs of engine and trainer are not equal, which batch_invariant = true demands: version {version} of {who} "
        f"gives {found.engine:.9g} for the token at position {position} of row {found.row} of the probe, the trainer "
        f"{found.trainer:.9g}; the mean over {found.tokens} tokens is {found.mean:.2g}. Run both on the same kind of processor "
        "with the same versions of torch and transformers, or leave batch_invariant out"
    )


def _sampled(asked: Probe, values: Floats) -> list[Floats]:
    """``values`` (float32 ``[T]``) of the sampled tokens, by row."""
    sampled, ends = columns_of(asked)[1], np.cumsum(asked.lengths)
    return [
        part[mask]
        for part, mask in zip(
            np.split(values, ends[:-1]), np.split(sampled, ends[:-1]), strict=True
        )
    ]


def columns_of(asked: Probe) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], Floats]:
    """Tokens, the mask of the sampled ones, and the trainer's log-probs of them. Raises
    :class:`WireError`.
    """
    total, whole = sum(asked.lengths), min(asked.lengths, default=1) > 0
    sizes = (len(asked.tokens), len(asked.sampled), len(asked.logprobs))
    if not whole or sizes != (4 * total, total, 4 * total):
        raise WireError(f"a probe of {total} tokens has columns of {sizes} bytes")
    return (
        np.frombuffer(asked.tokens, "<i4").astype(np.int32),
        np.frombuffer(asked.sampled, np.uint8).astype(bool),
        np.frombuffer(asked.logprobs, "<f4").astype(np.float32),
    )


def images_of(asked: Probe) -> Images:
    """The images of all rows, by their places among all tokens; each digest is that of its file. Raises
    :class:`WireError`.
    """
    return decode(asked.images, [asked.files], np.cumsum(asked.lengths).tolist())
