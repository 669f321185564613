"""What a pool knows of its runs, its hosts, and the RaaS of the ones on the others."""

from __future__ import annotations

from dataclasses import dataclass, field

from astraflow_contrib_pool.config import TenantTable
from astraflow_contrib_pool.messages import RenewRun, SeatReport, WantedRaas

BUSY_S = 2.0
"""A RaaS that may run episodes and has run none for so long has nothing to do."""

IDLE_S = 5.0
"""One that has had nothing to do for so long makes room at once."""

_PEAK_DECAY = 0.7
_EPISODES = 512
"""Episodes over which the tokens of one are averaged."""


@dataclass
class PooledRaas:
    """A RaaS of a run on a host, from the decision to start it to the report of its end. ``start`` distinguishes processes of
    one name; later ones have a larger number. ``leaving_since``: it gets no tasks; ``ending``: the host is to end it."""

    run: str
    name: str
    start: int
    number: int
    host: str
    since: float
    environment: dict[str, str] = field(repr=False)
    directory: str = ""
    launcher: str = field(default="", repr=False)
    reported: bool = False
    ready: bool = False
    running: int = 0
    tokens: float = 0.0
    episodes: float = 0.0
    places: int = 0
    pid: int = 0
    cpu_s: float = 0.0
    peak: float = 0.0
    busy: bool = True
    busy_at: float = 0.0
    leaving_since: float | None = None
    ending: bool = False

    @property
    def leaving(self) -> bool:
        """Whether it makes room."""
        return self.ending or self.leaving_since is not None

    def on_report(self, report: SeatReport, now: float) -> tuple[float, float]:
        """Note a report; the tokens and episodes since the last one."""
        grown = max(0.0, report.tokens - self.tokens)
        ended = max(0.0, report.episodes - self.episodes)
        self.tokens, self.episodes = self.tokens + grown, self.episodes + ended
        if report.state == "ready" and not self.ready:
            self.ready, self.busy_at = True, now
        self.reported, self.running = True, report.running
        self.pid, self.cpu_s = report.pid, report.cpu_s
        if self.places:
            # One that is given nothing stays as it was: it could not show that it is busy.
            self.peak = max(float(report.running), self.peak * _PEAK_DECAY)
            if report.running or grown:
                self.busy_at = now
            self.busy = now - self.busy_at < BUSY_S
        return grown, ended

    def grant(self, places: int, now: float) -> None:
        """Let it run that many episodes."""
        if places and not self.places:
            self.busy_at = now
        self.places = places

    def idle(self, now: float) -> bool:
        """Whether it has had nothing to do for some time."""
        return self.ready and not self.busy and now - self.busy_at >= IDLE_S


@dataclass(frozen=True, slots=True)
class EndedRaas:
    """A RaaS that exited on its own, until its launcher requests another start."""

    number: int
    host: str
    pid: int
    cpu_s: float
    exit_code: int
    last_lines: list[str]


@dataclass
class PooledRun:
    """A run of the pool. ``usage``: tokens per weight since it came. ``served``: one of its RaaS was ready once."""

    key: str
    tenant: str
    table: TenantTable
    message: RenewRun
    heard: float
    usage: float = 0.0
    served: bool = False
    recent: tuple[float, float] = (0.0, 0.0)
    ended: dict[str, EndedRaas] = field(default_factory=dict)

    def count(self, tokens: float, episodes: float, weight: float) -> None:
        """Its RaaS have generated tokens and ended episodes."""
        self.usage += tokens / weight
        before = self.recent
        keep = (
            1.0
            if before[1] < _EPISODES
            else 1 - episodes / before[1]
            if episodes < before[1]
            else 0.0
        )
        self.recent = (before[0] * keep + tokens, before[1] * keep + episodes)

    @property
    def episode_tokens(self) -> float:
        """Tokens of an episode, the mean of the last ones; 0 before the first has ended."""
        tokens, episodes = self.recent
        return tokens / episodes if episodes else 0.0

    def wanted(self) -> dict[str, WantedRaas]:
        """The RaaS that it wants and that did not end by themselves."""
        return {each.name: each for each in self.message.raas if each.name not in self.ended}

    def renew(self, message: RenewRun, now: float) -> None:
        """Note what it wants now; what ended is forgotten once its launcher asks for it again."""
        self.message, self.heard = message, now
        asked = {each.name: each.number for each in message.raas}
        self.ended = {
            name: ended
            for name, ended in self.ended.items()
            if name in asked and asked[name] <= ended.number
        }


@dataclass
class PooledHost:
    """A host. ``id`` is that of its process."""

    name: str
    id: str
    slots: int
    places: int
    heard: float
    draining: bool = False
