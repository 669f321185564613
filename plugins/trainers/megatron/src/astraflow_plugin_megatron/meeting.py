"""The rendezvous of the ranks: each registers, and those that do not are named."""

from __future__ import annotations

import itertools
import os
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

from astraflow_core.errors import DeadlineExceeded
from astraflow_core.types import Ranks

_meetings = itertools.count()


def meeting_place(ranks: Ranks) -> Any:
    """The store through which these ranks make their process groups, at the address that torchrun left in the
    environment. Raises :class:`DeadlineExceeded` naming the ranks that did not arrive in time.

    The store of torchrun's agent outlives its ranks, and so does what they said before a restart; hence a part
    of it for each restart, and for each meeting of a process.
    """
    if ranks.size == 1:
        return HashStore()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    ends = time.monotonic() + ranks.deadline_s
    try:
        server = TCPStore(
            host,
            port,
            is_master=ranks.rank == 0 and not hosted,
            timeout=timedelta(seconds=ranks.deadline_s),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except dist.DistError as error:
        raise DeadlineExceeded(
            f"the meeting place of {ranks.size} ranks at {host}:{port}",
            str(error),
            ranks.deadline_s,
        ) from error
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"astraflow-megatron/{restart}/{next(_meetings)}", server)
    store.set(f"rank-{ranks.rank}", "here")
    missing = [other for other in range(ranks.size) if not _came(store, other, ends)]
    if missing:
        raise DeadlineExceeded(
            f"rank {', '.join(map(str, missing))} of {ranks.size}",
            f"the ranks of trainer 'megatron' meet at {host}:{port}; check the logs of the missing ranks",
            ranks.deadline_s,
        )
    return PrefixStore("group", store)


def _came(store: Any, rank: int, ends: float) -> bool:
    try:
        store.wait([f"rank-{rank}"], timedelta(seconds=max(0.001, ends - time.monotonic())))
    except dist.DistStoreError:
        return False
    return True
