"""Messages of a pool: those of the launcher of a run, and those of a host; msgpack bodies of ``POST /v1/…``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from astraflow_wire.messages import Message

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z"
Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Amount = Annotated[int, Meta(ge=0, le=1 << 20)]
ProcessId = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Starts = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Path = Annotated[str, Meta(max_length=4096)]
Value = Annotated[str, Meta(pattern=r"^[^\x00]*\Z", max_length=4096)]
Directory = Annotated[str, Meta(pattern=r"^/[^\x00]*\Z", max_length=1024)]
RaasName = Annotated[str, Meta(pattern=r"^raas-[0-9]{1,6}\Z")]
Text = Annotated[str, Meta(max_length=1000)]
MOST_COUNTED = 1e15
Figure = Annotated[float, Meta(ge=0, le=MOST_COUNTED)]
MOST_RAAS = 256
MOST_SEATS = 256
MOST_PLACES = 4096
TOKENS_PER_PLACE_S = 10_000.0
"""No episode generates more tokens in a second: a report that says so is refused."""

PASSED_ON = (
    "ASTRAFLOW_TOKEN", "ASTRAFLOW_DATAFLOW", "ASTRAFLOW_ORIGIN", "ASTRAFLOW_START", "ASTRAFLOW_LOG_LEVEL", "PYTHONPATH",
)  # fmt: skip
"""Environment variables that a run may set for its RaaS on a host of others."""

SeatState = Literal["starting", "ready", "ended"]
RaasState = Literal["waiting", "starting", "running", "leaving", "ended"]


class WantedRaas(Message, frozen=True):
    """A RaaS that a run wants. ``number`` grows with each start that its launcher asks for. ``environment`` has secrets."""

    name: RaasName
    number: Amount
    environment: Annotated[dict[str, Value], Meta(max_length=len(PASSED_ON))]


class RenewRun(Message, frozen=True):
    """``POST /v1/runs/renew``: a run names all RaaS that it wants, joins with the first call, and renews with
    each further one. ``directory``: of the run, at the same path on each host. ``unit``: episodes of a task. ``most``: episodes
    that a RaaS runs at once. ``id``: of the launcher, a secret whose digest is in the directory: hosts start nothing in a
    directory whose digest is another.
    400: an environment variable that a run may not set.
    403: the token is not that of a tenant.
    409: another launcher uses this name of the tenant; the reason says when it is free.
    409: the tenant has as many runs as it may have.
    409: another run of the pool uses the directory.
    429: too many runs of the tenant joined within a minute; the reason says when to try again."""

    run: Name
    id: Name
    directory: Directory
    unit: Annotated[int, Meta(ge=1, le=1 << 20)]
    most: Annotated[int, Meta(ge=1, le=1 << 20)]
    raas: Annotated[list[WantedRaas], Meta(max_length=MOST_RAAS)]


class RaasInPool(Message, frozen=True):
    """What became of a RaaS that a run wants; ``number`` of the start that it is about."""

    name: Name
    number: Amount
    state: RaasState
    host: str = ""
    pid: int = 0
    cpu_s: float = 0.0
    exit_code: int | None = None
    last_lines: list[str] = msgspec.field(default_factory=list)


class RunRenewed(Message, frozen=True):
    """Reply: a run that does not call for ``lease_s`` seconds loses its RaaS. ``waits_for``: why it has not all that it wants."""

    lease_s: float
    raas: list[RaasInPool]
    waits_for: str = ""


class LeaveRun(Message, frozen=True):
    """``POST /v1/runs/leave``: the RaaS of the run end.
    404: the tenant has no such run, or another launcher has it."""

    run: Name
    id: Name


class SeatReport(Message, frozen=True):
    """A RaaS on a host. ``tokens`` and ``episodes``: since it started. ``running``: episodes."""

    run: Path
    raas: RaasName
    start: Starts
    state: SeatState
    pid: ProcessId = 0
    running: Amount = 0
    tokens: Figure = 0.0
    episodes: Figure = 0.0
    cpu_s: Figure = 0.0
    exit_code: Annotated[int, Meta(ge=-255, le=255)] = 0
    last_lines: Annotated[list[Text], Meta(max_length=20)] = msgspec.field(default_factory=list)


class RenewHost(Message, frozen=True):
    """``POST /v1/hosts/renew``: a host says what it can hold and what runs there; it joins with the first call.
    403: the token is not that of hosts.
    400: a RaaS has generated more tokens than its places can.
    409: another process of this name is a host of the pool; the reason says when the name is free."""

    host: Name
    id: Name
    slots: Annotated[int, Meta(ge=1, le=MOST_SEATS)]
    places: Annotated[int, Meta(ge=1, le=MOST_PLACES)]
    seats: Annotated[list[SeatReport], Meta(max_length=MOST_SEATS)]


class SeatOrder(Message, frozen=True):
    """A RaaS that a host is to have, with ``places`` episodes at once. ``launcher``: its secret id. ``environment`` is empty once it runs."""

    run: str
    raas: str
    start: int
    places: int
    directory: str
    launcher: str
    environment: dict[str, str] = msgspec.field(default_factory=dict)


class HostRenewed(Message, frozen=True):
    """Reply: all RaaS that the host is to have, any other ends. A host that does not call for ``lease_s`` seconds counts as lost.
    ``stop``: it is to leave."""

    lease_s: float
    every_s: float
    seats: list[SeatOrder]
    stop: bool = False


class LeaveHost(Message, frozen=True):
    """``POST /v1/hosts/leave``: nothing runs on the host any longer.
    404: the pool has no such host, or another process has its name."""

    host: Name
    id: Name


class DrainHost(Message, frozen=True):
    """``POST /v1/hosts/drain``: its RaaS finish their tasks, and it leaves. ``author``: for the audit log.
    404: the pool has no such host."""

    host: Name
    author: Text = ""


class Remaining(Message, frozen=True):
    """Reply: done. ``remaining``: RaaS that still end."""

    remaining: int = 0


class RaasFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a host reads of the status of a RaaS, which may be code of the run that answers in its place."""

    ready: bool
    episodes_running: Amount
    metrics: dict[str, float]

    def metric(self, name: str) -> float:
        """A counter, 0 if it is none."""
        value = self.metrics.get(name, 0.0)
        return value if 0 <= value <= MOST_COUNTED else 0.0


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A host in ``GET /v1/status``."""

    name: str
    slots: int
    places: int
    raas: int
    running: int
    draining: bool
    silent_s: float


class SeatStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A RaaS of a run in ``GET /v1/status``."""

    raas: str
    host: str
    state: str
    places: int
    running: int
    held_s: float


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A run, with its account: ``tokens`` and ``slot_s`` (seconds of RaaS) in all; ``share`` of the pool's tokens, ``due`` by its
    weight among the runs that are there."""

    run: str
    tenant: str
    here: bool
    weight: float
    priority: int
    wanted: int
    raas: list[SeatStatus]
    tokens: float
    slot_s: float
    cost: float
    share: float
    due: float
    waits_for: str = ""


class PoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/status``: all hosts and runs for those who have the pool's token; a tenant sees its own runs alone."""

    hosts: list[HostStatus]
    runs: list[RunStatus]
    tokens: float
    up_s: float
