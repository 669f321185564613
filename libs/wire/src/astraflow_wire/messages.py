"""Messages between RaaS or trainers and the dataflow; msgpack bodies of ``POST /v1/...``.

The RaaS or the trainer makes every call; replies to a RaaS carry :class:`Notices`. Numbers are finite and bounded;
names, lists and tables have a largest size (:mod:`astraflow_wire.limits`). Texts for display are cut to theirs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from astraflow_wire.codec import decode as decode
from astraflow_wire.codec import encode as encode
from astraflow_wire.images.table import ImageTable
from astraflow_wire.limits import (
    MAX_TASKS,
    TEXTS,
    Added,
    Count,
    Digests,
    Endpoints,
    FailureKind,
    Integer,
    Metrics,
    Name,
    Nats,
    Number,
    Packages,
    Places,
    Policies,
    ProbeColumn,
    ProbeLengths,
    PromptId,
    RewardNames,
    Seconds,
    TaskNames,
    Updates,
    Version,
    Versions,
    check_table,
    cut,
)


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all messages: immutable, unknown fields rejected."""


class TextMessage(Message, frozen=True):
    """A message with texts for display, which are cut (:data:`astraflow_wire.limits.TEXTS`)."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if (most := TEXTS.get(field)) and len(text := getattr(self, field)) > most:
                msgspec.structs.force_setattr(self, field, cut(text, most))


class SamplingMessage(Message, frozen=True):
    """Sampling of a task; fields as in :class:`astraflow_core.types.Sampling`, stop strings as text."""

    max_tokens: Count
    temperature: Number = 1.0
    top_p: Number = 1.0
    top_k: Integer = 0
    min_p: Number = 0.0
    stop: list[str] = []


class Probe(Message, frozen=True):
    """A trainer's log-probs of a few rows under a version: ``lengths`` of the rows; ``tokens`` int32, ``sampled`` uint8 (1:
    compare it) and ``logprobs`` float32 at temperature 1 are little-endian bytes, concatenated over the rows. ``moved``:
    the mean absolute change (nats) of the trainer's log-probs of the rows of its last probe, which came with version
    ``since`` (-1: this is the first). ``images``: as in a batch, if rows have some; ``files``: of each image once."""

    lengths: ProbeLengths
    tokens: ProbeColumn
    sampled: ProbeColumn
    logprobs: ProbeColumn
    since: Version = -1
    moved: Nats = 0.0
    images: ImageTable | UnsetType = UNSET
    files: ProbeColumn = b""


class AnnouncementMessage(Message, frozen=True):
    """A published version; fields as in :class:`astraflow_core.types.Announcement`. With a ``probe`` a RaaS that
    serves the version compares its engine's log-probs, and reports the gap among its metrics.
    400: the run has no such policy; the reason lists those that it has.
    409: the trainer is not registered, or another process has registered for its policy since.
    409: the number is not above the newest; version numbers must increase.
    409: the number was announced with another digest."""

    policy: Name
    version: Version
    transport: Name
    endpoints: Endpoints
    digest: Name
    size: Count
    probe: Probe | None = None
    incarnation: Count = 0


class RevokedLease(Message, frozen=True):
    """A task that the RaaS must abort: its push would be answered 409."""

    task: Name
    reason: str


class Notices(Message, frozen=True):
    """Notices for a RaaS. ``announcements``: the newest version of each policy that is newer than what the RaaS
    reports as seen. ``pins``: policy → version that this RaaS must serve until the pin is gone (evaluation).
    ``discard``: policy → digest that the RaaS reported, of weights that this run does not have. If it serves these, it
    must forget all versions of the policy and load the next that is announced, whatever its number. ``offer``: policies
    whose trainer has lost its state, see :class:`astraflow_wire.http.recovery.OfferVersion`. ``stop``: leave."""

    announcements: list[AnnouncementMessage] = []
    pins: Versions = {}
    revoked: list[RevokedLease] = []
    stop: bool = False
    discard: Digests = {}
    offer: Policies = []


class Task(Message, frozen=True):
    """One group to roll out. ``pinned`` is not empty for evaluation: policy → exact version. After
    ``group_deadline_s`` the episodes that are done are pushed and the others aborted."""

    id: Name
    prompt_id: PromptId
    data: dict[str, Any]
    group_size: Count
    sampling: SamplingMessage
    lease_s: Seconds
    deadline_s: Seconds
    pinned: Versions = {}
    eval_set: Name = ""
    group_deadline_s: Seconds | None = None


class RegisterRaas(Message, frozen=True):
    """``POST /v1/raas/register``; ``capacity`` in episodes at once. ``origin``: a random id of the process, or of the
    launcher that restarted it ``start`` times, for a repeated registration. ``packages``: those of the run that it has.
    While another has the name, the reply waits until that one sends a heartbeat (409) or is *suspect*: silent.
    400: a capacity below one episode.
    400: the run has no such policy; the reason lists those that it has.
    409: another RaaS has this name and is alive; the reason says which, and when the name is free.
    409: a later ``start`` of this ``origin`` has registered: this process was replaced.
    409: the run has as many RaaS as it may have (1024).
    412: another version of a package than the dataflow has; the reason names both."""

    raas: Name
    pid: Count
    host: Name
    policies: Policies
    capacity: Places
    origin: Name = ""
    start: Count = 0
    packages: Packages = {}


class RaasRegistered(Message, frozen=True):
    """Reply: the longest interval between renewals (``renew_s``), the notices, and the ``incarnation``: the number of
    this registration, which every further call carries. A later process of the name, once this has ended, supersedes it."""

    run: Name
    renew_s: Seconds
    notices: Notices
    incarnation: Count


class LeaseTasks(Message, frozen=True):
    """``POST /v1/tasks/lease``: tasks for up to ``free`` episodes. Waits up to ``wait_s``, less if there are tasks or
    notices. By policy: ``serving``: the version served now, ``digests``: its digest, ``seen``: the newest one known.
    400: the run has no such policy; the reason lists those that it has.
    404: this RaaS is not registered, or was given up: it must register (again).
    409: another process has registered as this RaaS since; the reason says when."""

    raas: Name
    free: Places
    wait_s: Seconds
    serving: Versions
    seen: Versions
    incarnation: Count = 0
    digests: Digests = {}


class TasksLeased(Message, frozen=True):
    """Reply to :class:`LeaseTasks`."""

    tasks: list[Task]
    notices: Notices


class RenewLeases(Message, frozen=True):
    """``POST /v1/tasks/renew``: the heartbeat of a RaaS with all its leased tasks. ``metrics``: gauges and counters
    of the RaaS (``tokens_generated`` since it started, ``prompt_tokens``, ``running``, ``decode_s``, per policy
    ``POLICY/pull_s``, ``POLICY/pause_s``, ``POLICY/load_s``, ``POLICY/resume_s``, ``POLICY/swaps``, of the link to
    the publisher ``POLICY/link_mb_s`` and ``POLICY/link_s``, its round trip …, and of the last :class:`Probe`
    ``POLICY/probe_version``, ``POLICY/probe_mean``, ``POLICY/probe_largest``). A ``tokens_generated`` that has grown
    by more than 10 million a second is ignored until that many can have been generated. ``waits``: its current waits;
    those beyond the first 64 are not shown. ``serving``, ``digests`` and ``seen``: as in :class:`LeaseTasks`.
    400: the run has no such policy; the reason lists those that it has.
    400: ``tokens_generated`` is not a count, or only some of the three figures of a probe are given.
    404: this RaaS is not registered, or was given up: it must register (again).
    409: another process has registered as this RaaS since; the reason says when."""

    raas: Name
    tasks: TaskNames
    serving: Versions
    seen: Versions
    metrics: Metrics = {}
    waits: Annotated[list[Wait], Meta(max_length=MAX_TASKS)] = []
    incarnation: Count = 0
    digests: Digests = {}


class Wait(TextMessage, frozen=True):
    """One wait: ``who`` waits ``for_whom`` because of ``what``, ``since_s`` seconds, at most ``until_s`` more."""

    who: str
    for_whom: str
    what: str
    since_s: Number
    until_s: Number


class LeasesRenewed(Message, frozen=True):
    """Reply to :class:`RenewLeases`."""

    notices: Notices


class FailTask(TextMessage, frozen=True):
    """``POST /v1/tasks/fail``: the RaaS could not roll out the task; ``error`` is a message. ``fatal``: no other
    attempt can succeed (prompt over the context …). ``environment``: the kind of failure, if an environment failed.
    404: this RaaS or this incarnation of it is not known: it must register (again).
    409: another process has registered as this RaaS since; the reason says when."""

    raas: Name
    task: Name
    error: str
    fatal: bool = False
    environment: FailureKind = ""
    incarnation: Count = 0


class GroupPushed(Message, frozen=True):
    """Reply to ``POST /v1/groups``: ``status`` is ``accepted`` (by at least one policy), ``rejected``, ``partial`` (what the
    group deadline cut off is now a task) or ``duplicate`` (pushed before; nothing changed). A late push is answered 409."""

    status: str
    reasons: dict[str, str] = {}


class LeaveRaas(TextMessage, frozen=True):
    """``POST /v1/raas/leave``: its leases return to the queue at once.
    404: this RaaS or this incarnation of it is not known: it must register (again).
    409: another process has registered as this RaaS since; the reason says when."""

    raas: Name
    reason: str
    incarnation: Count = 0


class AddRaas(Message, frozen=True):
    """``POST /v1/raas/add``: the launcher of the run is to start ``count`` more RaaS. ``author``: who requests it. A
    message with the same ``id`` is carried out once.
    400: the count is below one.
    409: the run ends.
    409: more RaaS than may be requested in all (1024) beyond those of the config."""

    id: Name
    count: Added
    author: Name


class PoolChanged(Message, frozen=True):
    """Since the start ``added`` RaaS were requested, ``drained`` drained; ``size``: those present and not draining."""

    added: Count
    drained: Count
    size: Count


class DrainRaas(Message, frozen=True):
    """``POST /v1/raas/drain``: a RaaS gets no new tasks, finishes what it has, and leaves. ``author``: who requests
    it; ``id``: of the request in the audit log, if it has one. A repeated request changes nothing.
    404: there is no RaaS of that name.
    409: it is the last one; add another first."""

    raas: Name
    author: Name
    id: Name = ""


class RevokeToken(Message, frozen=True):
    """``POST /v1/access/revoke``: the tokens of a process or a person that are valid now are so no longer. ``role`` and
    ``name``: as the token was made for. ``author``: who asks.
    400: no role is called that, or no token can be made for the name."""

    role: Name
    name: Name
    author: Name


class TokenRevoked(Message, frozen=True):
    """Reply: the generation of the tokens that are valid from now on."""

    generation: Count


class RegisterTrainer(Message, frozen=True):
    """``POST /v1/trainers/register``: the trainer of a policy registers, perhaps after a restart. ``updates``: the
    updates after which it has a state to resume from: its checkpoints, or 0, the start. ``recovered``: it has the
    weights of this version from elsewhere (:class:`astraflow_wire.http.recovery.RecoverVersion`); -1: it has not. ``packages``: those of the run that it has installed.
    400: the run has no such policy; the reason lists those that it has.
    409: none of ``updates`` is possible: they are more than were made, or later batches are no longer kept.
    412: another version of a package than the dataflow has; the reason names both."""

    policy: Name
    pid: Count
    host: Name
    updates: Updates = (0,)
    recovered: Version = -1
    packages: Packages = {}


class TrainerRegistered(Message, frozen=True):
    """Reply: ``highest_version`` announced so far (-1: none), and the ``updates`` to resume from; later ones are
    repeated, from the same batches in the same order. ``incarnation``: the number of this registration for this
    policy, which every further call carries. A process that has registered later supersedes this one."""

    run: Name
    highest_version: Version
    updates: Count
    incarnation: Count


class VersionAnnounced(Message, frozen=True):
    """Reply to ``POST /v1/versions`` (:class:`AnnouncementMessage`): what a publisher must retain in addition to the newest."""

    retain: list[Version]


class NextBatch(Message, frozen=True):
    """``POST /v1/batches/next``: the batch that updates ``version``. Waits up to ``wait_s``; the reply is a frame
    (``wire.batches``). ``named_rewards``: metrics that it has columns of.
    400: the run has no such policy; the reason lists those that it has.
    409: the trainer is not registered, or another process has registered for its policy since.
    409: ``version`` is not the newest announced.
    409: the previous batch, for another version, is not acknowledged.
    422: an episode of the batch lacks one of the ``named_rewards``."""

    policy: Name
    version: Version
    wait_s: Seconds
    incarnation: Count = 0
    named_rewards: RewardNames = []


class AcknowledgeBatch(Message, frozen=True):
    """``POST /v1/batches/ack``: the update made from ``batch`` is done, and published as ``version`` if that differs
    from the version updated. ``metrics`` of the step are logged and shown.
    400: the run has no such policy; the reason lists those that it has.
    409: the trainer is not registered, or another process has registered for its policy since.
    409: the version is not announced.
    409: this batch is not the one being trained."""

    policy: Name
    batch: Name
    version: Version
    metrics: Metrics
    incarnation: Count = 0


class BatchAcknowledged(Message, frozen=True):
    """Reply: versions to retain; ``stop``: make no further update."""

    retain: list[Version]
    stop: bool


class ReleaseBatches(Message, frozen=True):
    """``POST /v1/batches/release``: a checkpoint covers all updates up to ``updates``. ``last``: the trainer ends,
    and all its files are on disk; the dataflow no longer waits for it.
    400: the run has no such policy; the reason lists those that it has.
    409: the trainer is not registered, or another process has registered for its policy since.
    409: more updates are released than were acknowledged."""

    policy: Name
    updates: Count
    incarnation: Count = 0
    last: bool = False


class TrainerFailed(TextMessage, frozen=True):
    """``POST /v1/trainers/failed``: the trainer ends because of ``error`` (``batch`` if one is the cause; ``user`` if
    it is the user's). ``incarnation`` may be 0 as long as no trainer of this policy has registered.
    400: the run has no such policy; the reason lists those that it has.
    409: the trainer is not registered, or another process has registered for its policy since."""

    policy: Name
    error: str
    batch: Name = ""
    user: bool = False
    incarnation: Count = 0


class StopRun(TextMessage, frozen=True):
    """``POST /v1/stop``: end the run cleanly. The journal keeps the request, so that a restarted dataflow continues
    the stop; only ``astraflow run --resume`` makes the run continue. ``id``: as in :class:`DrainRaas`."""

    reason: str
    id: Name = ""


class SwapPolicy(Message, frozen=True):
    """``POST /v1/data_policies/swap``: replace the data policy ``name``, or with an empty ``table`` restore the previous one.
    ``place``: ``"prompts"``, or the policy whose data it decides on; ``table``: as in the config, ``use`` (the name of an
    installed component; a ``module:attr`` only if the config of the run names the same for a data policy) and keys;
    ``author`` and ``at`` (seconds since 1970) are recorded with it. A message with the same ``id`` is carried out once.
    400: the place or name does not exist.
    400: the table is invalid, or conflicts with the other policies of the list.
    400: the policy was not swapped, so there is nothing to restore.
    403: ``use`` is a ``module:attr`` that the config of the run does not name for a data policy.
    409: the run has had as many swaps as it may have (1024)."""

    id: Name
    place: Name
    name: Name
    author: Name
    at: Seconds
    table: dict[str, Any] = {}

    def __post_init__(self) -> None:
        """ValueError if the table contains what a config cannot."""
        check_table(self.table)


class PolicySwapped(Message, frozen=True):
    """``number`` of the swap in this run, from 1, and the ``table`` in effect from now on."""

    number: Count
    table: dict[str, Any]


class Done(Message, frozen=True):
    """An empty reply."""
