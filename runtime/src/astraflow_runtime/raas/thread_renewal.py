"""Renews the leases of a RaaS from a thread while its event loop is blocked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from msgspec.structs import replace

from astraflow_core.errors import AstraFlowError
from astraflow_runtime.raas.episodes.loop_watchdog import Block
from astraflow_wire import messages
from astraflow_wire.host.active_clock import active_time
from astraflow_wire.http.client import SyncClient
from astraflow_wire.http.raas_client import RaasClient

log = logging.getLogger("astraflow.raas")
_DEADLINE_S = 2.0
"""The deadline of one renewal: the thread has more to do."""


class ThreadRenewal:
    """Sends the last renewal again, with the current ``tasks`` and one more wait: the code that
    blocks the loop. The loop handles the replies, in order, as soon as it runs. This extends a
    lease by ``longest_s`` at most: a RaaS that cannot be interrupted then counts as gone.
    """

    def __init__(
        self,
        client: SyncClient,
        dataflow: RaasClient,
        tasks: Callable[[], list[str]],
        on_notices: Callable[[messages.Notices], None],
        loop: asyncio.AbstractEventLoop,
        every_s: Callable[[], float],
        longest_s: float,
    ) -> None:
        self._client, self._dataflow, self._on_notices, self._loop = (
            client,
            dataflow,
            on_notices,
            loop,
        )
        self._tasks, self._every_s, self._longest_s = tasks, every_s, longest_s
        self._next_s = 0.0

    def __call__(self, block: Block, left_s: float) -> None:
        """Renew if the interval has passed; ``left_s``: how long the block may last at most."""
        beat, now = self._dataflow.last_beat, active_time()
        if beat is None or now < self._next_s or block.seconds > self._longest_s:
            return
        self._next_s = now + self._every_s()
        wait = messages.Wait(
            who=beat.raas,
            for_whom=block.who,
            what=f"the event loop, blocked at {block.place}",
            since_s=block.seconds,
            until_s=left_s,
        )
        told = replace(beat, tasks=self._tasks(), waits=[*beat.waits, wait])
        try:
            answer = self._client.post(
                "/v1/tasks/renew", told, messages.LeasesRenewed, deadline_s=_DEADLINE_S
            )
        except AstraFlowError as error:
            log.info("%s could not renew its leases while it is blocked: %s", beat.raas, error)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_notices, answer.notices)
