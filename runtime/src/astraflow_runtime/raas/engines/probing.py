"""Probes in a RaaS: the engine's log-probs of the rows that came with a version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import AstraFlowError, WireError
from astraflow_runtime.logprob_gap import Floats, Gap, gap
from astraflow_runtime.raas.engines.colocation import OWN_DEVICES, Devices
from astraflow_runtime.raas.engines.host_client import HostClient
from astraflow_runtime.raas.engines.replicas import Replicas
from astraflow_wire.messages import AnnouncementMessage, Probe

log = logging.getLogger("astraflow.raas")


class Probes:
    """Measures how far the log-probs of engine and trainer are apart, whenever a version comes with
    a probe and a replica of its policy serves exactly that version. If none serves it before the
    next version, the probe is skipped.
    """

    def __init__(
        self,
        replicas: Mapping[str, Replicas],
        deadline_s: float,
        devices: Devices = OWN_DEVICES,
    ) -> None:
        self._replicas, self._deadline_s, self._devices = replicas, deadline_s, devices
        self._due: dict[str, AnnouncementMessage] = {}
        self._measured: dict[str, tuple[int, Gap]] = {}
        self._changed = asyncio.Event()

    def hear(self, announcement: AnnouncementMessage) -> None:
        """Record an announced version."""
        if announcement.probe is not None:
            try:
                columns_of(announcement.probe)
            except WireError as error:
                log.warning(
                    "version %d of policy %r is not probed: %s",
                    announcement.version,
                    announcement.policy,
                    error,
                )
                return
            self._due[announcement.policy] = announcement
            self.changed()

    def changed(self) -> None:
        """Another version may be served."""
        self._changed.set()

    def figures(self) -> dict[str, float]:
        """The last gap of each policy."""
        return {
            f"{policy}/probe_{name}": value
            for policy, (version, found) in self._measured.items()
            for name, value in {
                "version": float(version),
                "mean": found.mean,
                "largest": found.largest,
            }.items()
        }

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._changed.clear()
            for policy, announcement in list(self._due.items()):
                async with self._devices.use():
                    await self._probe(policy, announcement)
            await self._changed.wait()

    async def _probe(self, policy: str, announcement: AnnouncementMessage) -> None:
        version, asked = announcement.version, announcement.probe
        assert asked is not None
        for replica in self._replicas[policy].members:
            if replica.serving() != version or not replica.can_take(None):
                continue
            try:
                found = await self._gap(replica.engine.running().client, asked)
            except (AstraFlowError, ValueError) as error:
                log.warning("version %d of policy %r was not probed: %s", version, policy, error)
                continue
            if replica.serving() != version:
                continue  # swapped meanwhile: some tokens are of another version
            log.info(
                "version %d of policy %r: log-probs of engine and trainer differ by %s",
                version,
                policy,
                found,
            )
            self._measured[policy] = version, found
            if self._due.get(policy) is announcement:
                del self._due[policy]
            return

    async def _gap(self, client: HostClient, asked: Probe) -> Gap:
        tokens, sampled, trainer = columns_of(asked)
        ours: list[Floats] = []
        theirs: list[Floats] = []
        start = 0
        for length in asked.lengths:
            row = slice(start, start + length)
            scored = await client.score(tokens[row], self._deadline_s)
            ours.append(scored[sampled[row]])
            theirs.append(trainer[row][sampled[row]])
            start += length
        return gap(ours, theirs)


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
