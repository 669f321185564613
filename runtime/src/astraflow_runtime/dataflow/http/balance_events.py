"""The balance reports as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from astraflow_runtime.dataflow.fleet.pool import Pool
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_runtime.dataflow.progress import Progress

KEEP_ALIVE_S = 15.0


async def balance_events(
    pool: Pool, progress: Progress, wakeups: Wakeups, after: int
) -> AsyncIterator[bytes]:
    """The reports above number ``after``, then each as it is made, until the run is over. A comment
    every 15 s keeps the connection alive. Format: WHATWG HTML, "Server-sent events"; ``id`` is the
    number.
    """
    with wakeups.listening() as changed:
        while True:
            changed.clear()
            for report in pool.reports_after(after):
                after = report["number"]
                yield f"id: {after}\nevent: balance\ndata: {json.dumps(report)}\n\n".encode()
            if progress.over:
                return
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await changed.wait()
            except TimeoutError:
                yield b": nothing new\n\n"
