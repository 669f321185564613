"""A process group for one broadcast, separate from the default group: its members are counted before it is created.

The ranks meet at a store that rank 0 holds. A collective of ranks of which one is dead ends with a timeout that names
no rank; so each rank registers first, and rank 0 announces to all which ranks are missing, or that the group is created.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from astraflow_core.errors import WeightsError
from astraflow_core.types import Rendezvous

dist: Any = torch.distributed  # much of it has no types
BACKENDS = ("gloo", "nccl")
_VERDICT = "verdict"
_GO = "go "


class BroadcastGroup:
    """Ranks that are all there. Every call ends by ``deadline``, of :func:`time.monotonic`."""

    def __init__(self, group: Any, store: Any, rank: int, size: int, deadline: float) -> None:
        self.rank, self.size, self.deadline = rank, size, deadline
        self._group, self._store = group, store

    def broadcast(self, buffer: torch.Tensor) -> None:
        """Send ``buffer`` from rank 0 into that of all others. Raises :class:`WeightsError` if a rank is lost."""
        try:
            work = self._group.broadcast([buffer], dist.BroadcastOptions())
            work.wait(_left(self.deadline))
            if buffer.is_cuda:
                torch.cuda.synchronize(buffer.device)
        except RuntimeError as error:
            raise WeightsError(f"the broadcast was interrupted: {error}") from error

    def report(self, text: str = "ok") -> None:
        """Report the result to rank 0."""
        with contextlib.suppress(RuntimeError):  # rank 0 has given up, and says so itself
            self._store.set(_outcome(self.rank), text)

    def outcomes(self, names: Mapping[int, str]) -> dict[str, str]:
        """What each rank reported, by the names of ``ranks``; rank 0 waits for them until the deadline."""
        return {name: self._outcome_of(rank) for rank, name in names.items()}

    def _outcome_of(self, rank: int) -> str:
        try:
            self._store.wait([_outcome(rank)], _left(self.deadline))
            return str(self._store.get(_outcome(rank)).decode())
        except RuntimeError:
            return "no word"

    def close(self) -> None:
        """Leave; what others still wait for breaks off."""
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(RuntimeError):
                group.abort()
        self._store = None


class GroupRendezvous:
    """Rank 0's side until all are there: a store at ``host``, on a free port. The others reach this host at
    ``address``."""

    def __init__(self, host: str, address: str, deadline: float) -> None:
        self.deadline, self._address = deadline, address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, 0), family=family)
        self.port: int = listening.getsockname()[1]
        self._store = dist.TCPStore(
            host,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=_left(deadline),
            master_listen_fd=listening.detach(),
        )

    def lead(self, names: Mapping[int, str], backend: str) -> BroadcastGroup:
        """Wait for the ranks of ``names`` and make the group. Raises :class:`WeightsError` that names those that
        did not join by the deadline; the others get the same error."""
        keys = {rank: _presence_key(rank) for rank in names}
        try:
            self._store.wait(list(keys.values()), _left(self.deadline))
        except RuntimeError:
            missing = [names[rank] for rank, key in keys.items() if not self._store.check([key])]
            text = f"did not reach the rendezvous: {', '.join(missing)}"
            self._store.set(_VERDICT, text)
            self._await_readers([rank for rank, key in keys.items() if self._store.check([key])])
            raise WeightsError(text) from None
        self._store.set(_VERDICT, _GO + backend)
        size = len(names) + 1
        made = _make(backend, self._store, 0, size, self._address, self.deadline)
        return BroadcastGroup(made, self._store, 0, size, self.deadline)

    def _await_readers(self, ranks: list[int]) -> None:
        """The store goes with us, so those who are there read the verdict first."""
        with contextlib.suppress(RuntimeError):
            self._store.wait([_outcome(rank) for rank in ranks], timedelta(seconds=2))


def follow(rendezvous: Rendezvous, worker: int, deadline_s: float) -> BroadcastGroup:
    """Take the place of ``worker``. Raises :class:`WeightsError`, which names who is missing if that is why there is
    no group."""
    rank, deadline = rendezvous.rank_offset + worker, time.monotonic() + deadline_s
    try:
        store = dist.TCPStore(
            rendezvous.address,
            rendezvous.port,
            is_master=False,
            wait_for_workers=False,
            timeout=_left(deadline),
        )
        store.set(_presence_key(rank), "")
        store.wait([_VERDICT], _left(deadline))
        verdict = store.get(_VERDICT).decode()
        if not verdict.startswith(_GO):
            store.set(_outcome(rank), "read")
            raise WeightsError(verdict)
        host = _own_address(rendezvous)
        made = _make(verdict.removeprefix(_GO), store, rank, rendezvous.world_size, host, deadline)
    except RuntimeError as error:
        place = f"{rendezvous.address}:{rendezvous.port}"
        raise WeightsError(f"no broadcast from the trainer at {place}: {error}") from error
    return BroadcastGroup(made, store, rank, rendezvous.world_size, deadline)


def _make(backend: str, store: Any, rank: int, size: int, host: str, deadline: float) -> Any:
    own = dist.PrefixStore("group", store)
    if backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _left(deadline)
        return dist.ProcessGroupNCCL(own, rank, size, options)
    if backend != "gloo":
        raise WeightsError(f"unknown backend {backend!r}; known: {', '.join(BACKENDS)}")
    options = dist.ProcessGroupGloo._Options()
    options._timeout = _left(deadline)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    return dist.ProcessGroupGloo(own, rank, size, options)


def _own_address(rendezvous: Rendezvous) -> str:
    """The address by which this host reaches the trainer; no packet is sent."""
    family, kind, *_, address = socket.getaddrinfo(
        rendezvous.address, rendezvous.port, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _presence_key(rank: int) -> str:
    return f"here/{rank}"


def _outcome(rank: int) -> str:
    return f"outcome/{rank}"


def _left(deadline: float) -> timedelta:
    return timedelta(seconds=max(deadline - time.monotonic(), 0.001))
