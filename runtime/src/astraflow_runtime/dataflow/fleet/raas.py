"""The RaaS of a run: alive, suspect or gone by their heartbeats, and which versions each serves."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from astraflow_core.errors import Refused
from astraflow_wire.limits import MAX_INTEGER, MAX_RAAS
from astraflow_wire.messages import RegisterRaas, RevokedLease, Wait

log = logging.getLogger(__name__)

MAX_TOKENS_PER_S = 1e7
"""The most tokens that one RaaS may report for a second: far more than any engine generates, and
few enough that a wrong figure does not distort those of the run.
"""
SLACK_S = 10.0
"""A delayed renewal may arrive together with the next one."""
PACE_GROUPS = 20
"""The pace of a RaaS is the mean of its first groups, up to this number, and then moves by this part with each."""
PROBE = ("probe_version", "probe_mean", "probe_largest")
"""The figures of a probe that a RaaS reports for each policy: all or none."""
Health = Literal["alive", "suspect", "gone", "left"]


@dataclass(slots=True)
class RaasRecord:
    """One RaaS. ``origin``, ``start``: as it registered; ``incarnation``: how often it has
    registered; ``floor``: the versions announced when it registered, which it must have served
    before it gets tasks; ``told_*``: the notices that it was sent, so that a long-poll ends once
    for each; ``unconfirmed``: it is known from the journal only, and has not reported yet what it
    serves; ``draining_since``: it gets no new tasks and leaves when it has none; ``idle_s``:
    slot-seconds that it offered and that had no task; ``foreign``: policy → why the weights that it has
    of it are to be discarded, and ``discard`` → their digest; ``failures``: its consecutive failed tasks;
    ``set_aside``: why it gets no new tasks, if it failed too many; ``counted_at``: when its tokens
    were last counted; ``figures_rejected``: its figures were rejected, and a warning was given; ``group_s``: seconds of its
    training groups from lease to push, on average (``None`` before the first), and ``groups`` their number, as far as it
    counts; ``recorded_*``: its idle time and its tokens as the journal has them."""

    name: str
    pid: int
    host: str
    capacity: int
    last_heard: float
    floor: dict[str, int]
    origin: str = ""
    start: int = 0
    incarnation: int = 1
    registered_at: float = 0.0
    health: Health = "alive"
    caught_up: bool = False
    serving: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    waits: list[Wait] = field(default_factory=list)
    acknowledged_versions: dict[str, int] = field(default_factory=dict)
    sent_pins: dict[str, int] = field(default_factory=dict)
    unconfirmed: bool = False
    foreign: dict[str, str] = field(default_factory=dict)
    discard: dict[str, str] = field(default_factory=dict)
    sent_discard: dict[str, str] = field(default_factory=dict)
    sent_offer: list[str] = field(default_factory=list)
    revoked: dict[str, RevokedLease] = field(default_factory=dict)
    waiting_since: float | None = None
    draining_since: float | None = None
    idle_s: float = 0.0
    failures: int = 0
    any_success: bool = False
    set_aside: str = ""
    counted_at: float = 0.0
    figures_rejected: bool = False
    groups: int = 0
    group_s: float | None = None
    recorded_idle_s: float = 0.0
    recorded_tokens: float | None = None
    _empty: tuple[int, float] | None = None

    @property
    def draining(self) -> bool:
        """Whether it is draining."""
        return self.draining_since is not None

    @property
    def stays(self) -> bool:
        """Whether it gets tasks, or will once it serves the required versions."""
        return not self.draining and not self.set_aside

    @property
    def offered(self) -> int:
        """Slots that it offered in its last request and that have no task."""
        return self._empty[0] if self._empty else 0

    def set_idle_slots(self, places: int, now: float) -> None:
        """Record that that many of its slots are idle from now on."""
        self.idle_s = self.idle_until(now)
        self._empty = (places, now) if places else None

    def idle_until(self, now: float) -> float:
        """``idle_s`` as of now."""
        places, since = self._empty or (0, now)
        return self.idle_s + places * (now - since)

    def group_took(self, seconds: float) -> None:
        """Record that it has rolled out a group in that many seconds."""
        self.groups = min(self.groups + 1, PACE_GROUPS)
        known = self.group_s or 0.0
        self.group_s = known + (seconds - known) / self.groups

    def serves(self, versions: Mapping[str, int]) -> bool:
        """Whether it serves exactly these versions."""
        return all(self.serving.get(policy) == version for policy, version in versions.items())

    def same_process(self, message: RegisterRaas) -> bool:
        """Whether the registration is from the same process as before: by ``origin``, or else by
        process id and host.
        """
        if message.origin:
            return (self.origin, self.start) == (message.origin, message.start)
        return (self.origin, self.pid, self.host) == ("", message.pid, message.host)

    def behind(self, newest: Mapping[str, int]) -> dict[str, int] | None:
        """Policy → how many versions what it serves is behind ``newest``; ``None`` if it does not serve
        every policy."""
        if not newest.keys() <= self.serving.keys():
            return None
        return {policy: version - self.serving[policy] for policy, version in newest.items()}

    def is_past(self, versions: Mapping[str, int]) -> bool:
        """Whether it serves a newer version than one of these."""
        return any(self.serving.get(policy, -1) > version for policy, version in versions.items())


class Fleet:
    """All RaaS that ever registered."""

    def __init__(self, suspect_s: float, gone_s: float) -> None:
        self.suspect_s, self._gone_s = suspect_s, gone_s
        self._records: dict[str, RaasRecord] = {}
        self.tokens_generated = 0.0
        self.recorded_total = 0.0
        self.changed_at = 0.0
        self._slowest_s = math.inf

    def all(self) -> list[RaasRecord]:
        """Every RaaS, in order of its first registration."""
        return list(self._records.values())

    def live(self) -> list[RaasRecord]:
        """The RaaS whose heartbeat is recent."""
        return [record for record in self._records.values() if record.health == "alive"]

    def present(self) -> list[RaasRecord]:
        """The RaaS that have neither left nor been declared gone."""
        return [r for r in self._records.values() if r.health in ("alive", "suspect")]

    def group_took(self, record: RaasRecord, seconds: float) -> None:
        """Record that a RaaS has rolled out a group in that many seconds."""
        record.group_took(seconds)
        self._slowest_s = max(self._slowest_s, record.group_s or 0.0)

    def some_slower(self, group_s: float) -> bool:
        """Whether a RaaS present takes longer than ``group_s`` for a group, has brought none yet, or is silent. All are looked
        at only if that may be so."""
        if self._slowest_s > group_s:
            known = (r.group_s if r.health == "alive" else None for r in self.present())
            self._slowest_s = max((each or math.inf for each in known), default=0.0)
        return self._slowest_s > group_s

    def pool(self) -> list[RaasRecord]:
        """The present RaaS that get tasks: neither draining nor set aside."""
        return [record for record in self.present() if record.stays]

    def drain(self, name: str, now: float) -> None:
        """Give a RaaS no new tasks."""
        self._records[name].draining_since = self.changed_at = now

    def check(self, message: RegisterRaas) -> None:
        """Reject a RaaS that cannot take part."""
        if message.capacity < 1:
            raise Refused(
                400, f"RaaS {message.raas!r} has no capacity; expected at least one episode"
            )
        if message.raas not in self._records and len(self.present()) >= MAX_RAAS:
            raise Refused(
                409,
                f"cannot register RaaS {message.raas!r}: the run already has the maximum of {MAX_RAAS}; drain one "
                "first",
            )

    def register(
        self, message: RegisterRaas, announced: Mapping[str, int], now: float
    ) -> RaasRecord:
        """Register a RaaS that passed :meth:`check`, perhaps again under its name. If there are too
        many records, the oldest of those that are gone is dropped.
        """
        if message.raas not in self._records and len(self._records) >= MAX_RAAS:
            ended = (r.name for r in self._records.values() if r.health in ("gone", "left"))
            del self._records[next(ended)]
        floor = {policy: version for policy, version in announced.items() if version >= 0}
        before = self._records.get(message.raas)
        record = RaasRecord(
            message.raas,
            message.pid,
            message.host,
            message.capacity,
            now,
            floor,
            origin=message.origin,
            start=message.start,
            incarnation=before.incarnation + 1 if before is not None else 1,
            registered_at=now,
            counted_at=now,
        )
        if before is not None and before.health != "left":
            record.draining_since = before.draining_since
        if before is not None:
            record.groups, record.group_s = before.groups, before.group_s
        if before is not None and before.same_process(message):  # its count continues
            record.metrics = {k: v for k, v in before.metrics.items() if k == "tokens_generated"}
            record.recorded_tokens = before.recorded_tokens
        self._records[message.raas] = record
        self.changed_at, self._slowest_s = now, math.inf
        return record

    def heard(
        self, name: str, serving: Mapping[str, int], seen: Mapping[str, int], now: float
    ) -> RaasRecord:
        """Record a heartbeat; 404 if the RaaS must register (again)."""
        record = self._records.get(name)
        if record is None or record.health in ("gone", "left"):
            was = "is not registered" if record is None else f"was declared {record.health}"
            raise Refused(404, f"RaaS {name!r} {was}; it must register")
        record.last_heard, record.health, record.unconfirmed = now, "alive", False
        record.serving, record.seen = dict(serving), dict(seen)
        if not record.caught_up:
            record.caught_up = all(
                record.serving.get(policy, -1) >= version
                for policy, version in record.floor.items()
            )
            if record.caught_up:
                self.changed_at = now
        return record

    def restore(self, now: float) -> None:
        """Give each RaaS that registered before the restart its full timeout for the next heartbeat."""
        self.changed_at = now
        for record in self.present():
            record.last_heard, record.health, record.unconfirmed = now, "alive", True
            record.revoked.clear()

    def restore_counters(
        self, total: float, generated: Mapping[str, float], idle: Mapping[str, float]
    ) -> None:
        """Restore tokens generated in all, by each RaaS since it started, and the idle time of
        each.
        """
        self.tokens_generated = total
        for name, seconds in idle.items():
            if (record := self._records.get(name)) is not None:
                record.idle_s = seconds
        for name, tokens in generated.items():
            if (record := self._records.get(name)) is not None:
                record.metrics["tokens_generated"] = tokens

    def note_recorded(
        self, total: float, generated: Mapping[str, float], idle: Mapping[str, float]
    ) -> None:
        """An entry of the journal has these counters."""
        self.recorded_total = total
        for name, seconds in idle.items():
            if (record := self._records.get(name)) is not None:
                record.recorded_idle_s = seconds
        for name, tokens in generated.items():
            if (record := self._records.get(name)) is not None:
                record.recorded_tokens = tokens

    def add_recorded(self, record: RaasRecord) -> None:
        """Add a RaaS as an image of the state has it."""
        record.idle_s = record.recorded_idle_s
        if record.recorded_tokens is not None:
            record.metrics["tokens_generated"] = record.recorded_tokens
        self._records[record.name], self._slowest_s = record, math.inf

    def counters(self) -> dict[str, float]:
        """RaaS → tokens that it has generated since it started."""
        return {
            record.name: record.metrics["tokens_generated"]
            for record in self.present()
            if "tokens_generated" in record.metrics
        }

    def refresh(self, policy: str) -> dict[str, float]:
        """The number of weight swaps of a policy on the RaaS present, and the mean seconds
        (``pull_s``) and megabytes (``pull_mb``) of a pull and seconds of loading a version
        (``swap_s``). ``link_mb_s`` and ``link_s`` are rate and round trip of the slowest link to
        any of them, if known."""
        figures: dict[str, float] = defaultdict(float)
        links = []
        for record in self.present():
            if rate := record.metrics.get(f"{policy}/link_mb_s", 0.0):
                links.append((rate, record.metrics.get(f"{policy}/link_s", 0.0)))
            for name in ("swaps", "pull_s", "bytes_received", "pause_s", "load_s", "resume_s"):
                figures[name] += record.metrics.get(f"{policy}/{name}", 0.0)
        swaps = figures["swaps"]
        placed = figures["pause_s"] + figures["load_s"] + figures["resume_s"]
        return {
            "swaps": swaps,
            "pull_s": figures["pull_s"] / swaps if swaps >= 1 else 0.0,
            "pull_mb": figures["bytes_received"] / swaps / 1e6 if swaps >= 1 else 0.0,
            "swap_s": placed / swaps if swaps >= 1 else 0.0,
            **dict(zip(("link_mb_s", "link_s"), min(links, default=()), strict=False)),
        }

    def drafts(self, policy: str) -> dict[str, float]:
        """Of the engines of a policy on the RaaS present that speculate: the tokens that were ``drafted`` and those of them
        that were ``accepted``, and ``forwards_per_token``, how often a sequence was in a forward pass for each token that it
        got from one; empty if none does."""
        found = [
            record.metrics
            for record in self.present()
            if f"{policy}/drafted_tokens" in record.metrics
        ]
        if not found:
            return {}
        drafted, accepted, rows = (
            sum(metrics.get(f"{policy}/{name}", 0.0) for metrics in found)
            for name in ("drafted_tokens", "accepted_tokens", "decoded_rows")
        )
        return {
            "drafted": drafted,
            "accepted": accepted,
            "forwards_per_token": rows / max(1.0, rows + accepted),
        }

    def idle(self, now: float) -> dict[str, float]:
        """RaaS → idle slot-seconds since it registered."""
        return {record.name: record.idle_until(now) for record in self.present()}

    def give_up(self, name: str, now: float) -> None:
        """Declare a RaaS gone: it was silent for too long."""
        if (record := self._records.get(name)) is not None:
            record.health, self.changed_at = "gone", now

    def get(self, name: str) -> RaasRecord | None:
        """The RaaS of that name."""
        return self._records.get(name)

    def probed(self, policy: str) -> dict[str, float]:
        """The last probe of a policy, as its step shows it: ``probe_version``, and of the RaaS whose engine is
        furthest from the trainer ``probe_mean`` and ``probe_largest``, in nats; empty before the first."""
        found = [
            tuple(record.metrics[f"{policy}/{name}"] for name in PROBE)
            for record in self._records.values()
            if f"{policy}/{PROBE[0]}" in record.metrics
        ]
        newest = max((version for version, *_ in found), default=-1.0)
        worst = max(
            (each for each in found if each[0] == newest), key=lambda each: each[1], default=()
        )
        return dict(zip(PROBE, worst, strict=False))

    @staticmethod
    def check_metrics(policies: Iterable[str], metrics: Mapping[str, float]) -> None:
        """Reject figures of a RaaS that cannot be summed or compared."""
        generated = metrics.get("tokens_generated", 0.0)
        if not 0 <= generated <= MAX_INTEGER:
            raise Refused(400, f"metrics: tokens_generated = {generated:g} is not a token count")
        for policy in policies:
            missing = [name for name in PROBE if f"{policy}/{name}" not in metrics]
            if missing and len(missing) < len(PROBE):
                raise Refused(
                    400,
                    f"metrics: {policy}/{missing[0]} is missing; a probe has {', '.join(PROBE)}",
                )

    def update_metrics(self, record: RaasRecord, metrics: Mapping[str, float], now: float) -> None:
        """Update the counters of a RaaS; one that restarted counts from zero again. If the count of
        tokens is missing or impossible, the last one is kept.
        """
        before = record.metrics.get("tokens_generated")
        record.metrics = dict(metrics)
        after = record.metrics.pop("tokens_generated", None)
        if after is not None:
            known = before or 0.0
            grown = after - known if after >= known else after
            if grown <= MAX_TOKENS_PER_S * (now - record.counted_at + SLACK_S):
                self.tokens_generated += grown
                before, record.counted_at = after, now
            elif not record.figures_rejected:
                record.figures_rejected = True
                log.warning(
                    "RaaS %r reports %.0f generated tokens in %.1f s; the value is ignored",
                    record.name, grown, now - record.counted_at,
                )  # fmt: skip
        if before is not None:
            record.metrics["tokens_generated"] = before

    def sweep(self, now: float) -> list[RaasRecord]:
        """Update the health of every RaaS from its last heartbeat; returns those to declare gone."""
        gone = []
        for record in self.present():
            silence = now - record.last_heard
            if silence >= self._gone_s:
                gone.append(record)
            elif silence >= self.suspect_s:
                record.health, self._slowest_s = "suspect", math.inf
        return gone

    def leave(self, name: str, now: float) -> RaasRecord | None:
        """A RaaS says goodbye."""
        record = self._records.get(name)
        if record is not None:
            record.health, self.changed_at = "left", now
        return record
