"""The RaaS that this run knows: alive, suspect or gone by heartbeat; what each serves."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from astraflow_core.errors import Refused
from astraflow_wire.limits import MAX_INTEGER, MAX_RAAS
from astraflow_wire.messages import RegisterRaas, RevokedLease, Wait

log = logging.getLogger(__name__)

MAX_TOKENS_PER_S = 1e7
"""Tokens that one RaaS may generate in a second: far more than the engines of any, and so few that a wrong figure does not
spoil those of the run."""
SLACK_S = 10.0
"""Renewals may be held up, and those after them not."""
PROBE = ("probe_version", "probe_mean", "probe_largest")
"""What a RaaS reports of a probe, for each policy; all of these or none."""
Health = Literal["alive", "suspect", "gone", "left"]


@dataclass(slots=True)
class RaasRecord:
    """One RaaS. ``origin``, ``start``: as it registered; ``incarnation``: how often it has registered by now; ``floor``: the versions announced
    when it registered, which it must have served before it gets tasks; ``told_*``: the news that it has been sent, so that a long-poll ends once for each;
    ``unheard``: it is known from the journal only, and what it serves is not known yet;
    ``draining_since``: it gets no new tasks and leaves when it has none; ``idle_s``: seconds for which places that it offered stood empty,
    added up over the places; ``failures``: tasks that it failed in a row; ``set_aside``: why it gets no new tasks
    since, if it failed too many; ``counted_at``: when its tokens were last added up; ``doubted``: they were not, and
    somebody was told."""

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
    told_pins: dict[str, int] = field(default_factory=dict)
    unheard: bool = False
    revoked: dict[str, RevokedLease] = field(default_factory=dict)
    waiting_since: float | None = None
    draining_since: float | None = None
    idle_s: float = 0.0
    failures: int = 0
    any_success: bool = False
    set_aside: str = ""
    counted_at: float = 0.0
    doubted: bool = False
    _empty: tuple[int, float] | None = None

    @property
    def draining(self) -> bool:
        """Whether it was asked to leave."""
        return self.draining_since is not None

    @property
    def stays(self) -> bool:
        """Whether it gets tasks, or will when it serves the versions."""
        return not self.draining and not self.set_aside

    @property
    def offered(self) -> int:
        """Places that it offered when it asked last and that stand empty."""
        return self._empty[0] if self._empty else 0

    def stand_idle(self, places: int, now: float) -> None:
        """From now on so many places of it stand empty; 0: none."""
        self.idle_s = self.idle_until(now)
        self._empty = (places, now) if places else None

    def idle_until(self, now: float) -> float:
        """``idle_s`` as it is now."""
        places, since = self._empty or (0, now)
        return self.idle_s + places * (now - since)

    def serves(self, versions: Mapping[str, int]) -> bool:
        """Whether it serves exactly these versions."""
        return all(self.serving.get(policy) == version for policy, version in versions.items())

    def same_process(self, message: RegisterRaas) -> bool:
        """Whether the process that registered says so again. Without an ``origin`` its number and host tell."""
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
        self.changed_at = 0.0

    def all(self) -> list[RaasRecord]:
        """Every RaaS, in order of its first registration."""
        return list(self._records.values())

    def live(self) -> list[RaasRecord]:
        """Those heard from in time."""
        return [record for record in self._records.values() if record.health == "alive"]

    def present(self) -> list[RaasRecord]:
        """Those that have neither left nor been given up."""
        return [r for r in self._records.values() if r.health in ("alive", "suspect")]

    def pool(self) -> list[RaasRecord]:
        """Those present that get tasks: neither asked to leave nor set aside."""
        return [record for record in self.present() if record.stays]

    def drain(self, name: str, now: float) -> None:
        """Give a RaaS no new tasks."""
        self._records[name].draining_since = self.changed_at = now

    def check(self, message: RegisterRaas) -> None:
        """Refuse a RaaS that cannot be taken in."""
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
        """A RaaS that passed :meth:`check` arrives, or comes back under its name. Of those that have left or were
        given up the oldest is forgotten when there are too many."""
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
        if before is not None and before.same_process(message):  # it counts on
            record.metrics = {k: v for k, v in before.metrics.items() if k == "tokens_generated"}
        self._records[message.raas] = record
        self.changed_at = now
        return record

    def heard(
        self, name: str, serving: Mapping[str, int], seen: Mapping[str, int], now: float
    ) -> RaasRecord:
        """A sign of life; 404 if the RaaS must register (again)."""
        record = self._records.get(name)
        if record is None or record.health in ("gone", "left"):
            was = "is not registered" if record is None else f"was declared {record.health}"
            raise Refused(404, f"RaaS {name!r} {was}; it must register")
        record.last_heard, record.health, record.unheard = now, "alive", False
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
        """Those that were there before the dataflow restarted have their whole time to be heard from again."""
        self.changed_at = now
        for record in self.present():
            record.last_heard, record.health, record.unheard = now, "alive", True
            record.revoked.clear()

    def restore_counters(
        self, total: float, generated: Mapping[str, float], idle: Mapping[str, float]
    ) -> None:
        """Tokens generated in all, by each RaaS since it started, and how long each has stood idle."""
        self.tokens_generated = total
        for name, seconds in idle.items():
            if (record := self._records.get(name)) is not None:
                record.idle_s = seconds
        for name, tokens in generated.items():
            if (record := self._records.get(name)) is not None:
                record.metrics["tokens_generated"] = tokens

    def counters(self) -> dict[str, float]:
        """RaaS → tokens that it has generated since it started."""
        return {
            record.name: record.metrics["tokens_generated"]
            for record in self.present()
            if "tokens_generated" in record.metrics
        }

    def refresh(self, policy: str) -> dict[str, float]:
        """Swaps of a policy's weights that the RaaS present have made, and the mean seconds of a pull
        (``pull_s``), megabytes that it received (``pull_mb``) and seconds of putting a version into place
        (``swap_s``). ``link_mb_s`` and ``link_s`` are rate and round trip of the slowest way to any of them, if one
        is known."""
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

    def idle(self, now: float) -> dict[str, float]:
        """RaaS → place-seconds that it has stood idle since it registered."""
        return {record.name: record.idle_until(now) for record in self.present()}

    def give_up(self, name: str, now: float) -> None:
        """A RaaS was silent for too long."""
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
        """Refuse figures of a RaaS that cannot be added up or compared."""
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
        """Take the counters of a RaaS over; one that restarted counts from zero again. The last count of tokens stays
        where there is none, or one that cannot be."""
        before = record.metrics.get("tokens_generated")
        record.metrics = dict(metrics)
        after = record.metrics.pop("tokens_generated", None)
        if after is not None:
            known = before or 0.0
            grown = after - known if after >= known else after
            if grown <= MAX_TOKENS_PER_S * (now - record.counted_at + SLACK_S):
                self.tokens_generated += grown
                before, record.counted_at = after, now
            elif not record.doubted:
                record.doubted = True
                log.warning(
                    "RaaS %r reports %.0f generated tokens in %.1f s; the value is ignored",
                    record.name, grown, now - record.counted_at,
                )  # fmt: skip
        if before is not None:
            record.metrics["tokens_generated"] = before

    def sweep(self, now: float) -> list[RaasRecord]:
        """Re-judge every RaaS by its silence; returns those that must be given up."""
        gone = []
        for record in self.present():
            silence = now - record.last_heard
            if silence >= self._gone_s:
                gone.append(record)
            elif silence >= self.suspect_s:
                record.health = "suspect"
        return gone

    def leave(self, name: str, now: float) -> RaasRecord | None:
        """A RaaS says goodbye."""
        record = self._records.get(name)
        if record is not None:
            record.health, self.changed_at = "left", now
        return record
