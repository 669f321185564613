"""The decisions of a pool: its hosts and runs, which run has a RaaS where, and how many episodes each runs. Knows no network and no
clock; :mod:`astraflow_contrib_pool.service` serves it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from posixpath import normpath

from astraflow_contrib_pool.broker.ledger import Account, KeptWindow, Ledger, TokenWindow
from astraflow_contrib_pool.broker.limits import MinuteLimit, merge_earlier
from astraflow_contrib_pool.broker.members import EndedRaas, PooledHost, PooledRaas, PooledRun
from astraflow_contrib_pool.broker.placement import Seat, Want, place
from astraflow_contrib_pool.broker.shares import Claim, caught_up, share_places
from astraflow_contrib_pool.config import PoolFile
from astraflow_contrib_pool.messages import (
    PASSED_ON,
    TOKENS_PER_PLACE_S,
    DrainHost,
    HostRenewed,
    LeaveHost,
    LeaveRun,
    RaasInPool,
    Remaining,
    RenewHost,
    RenewRun,
    RunRenewed,
    SeatOrder,
    SeatReport,
    WantedRaas,
)
from astraflow_core.errors import Refused

_SLACK_S = 10.0
log = logging.getLogger("astraflow.pool")


class Broker:
    """All of a pool. Every call takes the time ``now`` in seconds of a steady clock, and ``wall`` where dates are kept."""

    def __init__(self, file: PoolFile, accounts: dict[str, Account], now: float) -> None:
        self.file, self.accounts = file, accounts
        self.runs: dict[str, PooledRun] = {}
        self.hosts: dict[str, PooledHost] = {}
        self.raas: list[PooledRaas] = []
        self._windows = {name: TokenWindow(began=now) for name in file.tenants}
        self._joins = {name: MinuteLimit() for name in file.tenants}
        self._moved = now
        self._start = 0

    def resume(self, windows: Mapping[str, KeptWindow], now: float, wall: float) -> None:
        """Go on with the quotas that a pool before this one has left."""
        for name, kept in windows.items():
            if name in self._windows:
                self._windows[name] = kept.resumed(self.file.tenants[name], now, wall)

    def ledger(self, now: float, wall: float) -> Ledger:
        """What is kept of this pool."""
        windows = {
            name: KeptWindow(began=wall - (now - window.began), tokens=window.tokens)
            for name, window in self._windows.items()
        }
        return Ledger(accounts=dict(self.accounts), windows=windows)

    # -- runs --------------------------------------------------------------------------------------

    def renew_run(self, tenant: str, message: RenewRun, now: float, wall: float) -> RunRenewed:
        """Renew a run: it reports the RaaS that it wants, and gets those that it has."""
        for raas in message.raas:
            if other := sorted(raas.environment.keys() - set(PASSED_ON)):
                raise Refused(
                    400,
                    f"{raas.name}: a run may not set {', '.join(other)} on hosts of a pool; it may set {', '.join(PASSED_ON)}",
                )
        key = f"{tenant}/{message.run}"
        run = self.runs.get(key)
        lease_s = self.file.pool.run_lease_s
        if run is not None and run.message.id != message.id:
            if (left := run.heard + lease_s - now) > 0:
                raise Refused(
                    409,
                    f"another launcher runs {key!r} in this pool; give this run another name, or wait until that one is silent "
                    f"for {lease_s:g} s ({left:.0f} s more)",
                )
            self._end_run(run, "its launcher was silent")
            run = None
        self._check_directory(key, message.directory)
        if run is None:
            run = self._join(key, tenant, message, now, wall)
        run.renew(message, now)
        self.accounts[key].seen = wall
        self.advance(now, wall)
        return RunRenewed(lease_s=lease_s, raas=[self._state(run, each) for each in message.raas])

    def _check_directory(self, key: str, directory: str) -> None:
        """Only a run whose RaaS have served has proved that the directory is its own; another one excludes no run."""
        for run in self.runs.values():
            if (
                run.key != key
                and run.served
                and normpath(run.message.directory) == normpath(directory)
            ):
                raise Refused(409, f"another run of this pool uses {directory}; give this run its own [run] directory")  # fmt: skip

    def _join(self, key: str, tenant: str, message: RenewRun, now: float, wall: float) -> PooledRun:
        table, joins = self.file.tenants[tenant], self._joins[tenant]
        present = sum(each.tenant == tenant for each in self.runs.values())
        if present >= table.max_runs:
            raise Refused(
                409,
                f"tenant {tenant!r} has {present} runs in this pool, as many as it may have (max_runs); end one first",
            )
        if (wait := joins.wait_s(now)) > 0:
            raise Refused(
                429,
                f"{joins.most} runs of tenant {tenant!r} joined within a minute, as many as may; try again in {wait:.0f} s",
            )
        joins.note(now)
        run = self.runs[key] = PooledRun(key, tenant, table, message, now)
        rivals = [each for each in self.runs.values() if self._competes(each)]
        run.usage = caught_up(self._usages(run, rivals), 0.0)
        self.accounts.setdefault(key, Account(joined=wall))
        merge_earlier(self.accounts, tenant, {*self.runs, *(raas.run for raas in self.raas)})
        log.info("run %s joins with %d RaaS", key, len(message.raas))
        return run

    def leave_run(self, tenant: str, message: LeaveRun, now: float, wall: float) -> Remaining:
        """A run is over."""
        run = self.runs.get(f"{tenant}/{message.run}")
        if run is None or run.message.id != message.id:
            raise Refused(
                404, f"tenant {tenant!r} has no run {message.run!r} of this launcher here"
            )
        self._end_run(run, "it left")
        self.advance(now, wall)
        return Remaining(remaining=sum(raas.run == run.key for raas in self.raas))

    def _state(self, run: PooledRun, wanted: WantedRaas) -> RaasInPool:
        if (ended := run.ended.get(wanted.name)) is not None:
            return RaasInPool(
                name=wanted.name,
                number=ended.number,
                state="ended",
                host=ended.host,
                pid=ended.pid,
                cpu_s=ended.cpu_s,
                exit_code=ended.exit_code,
                last_lines=ended.last_lines,
            )
        for raas in self.raas:
            if raas.run == run.key and raas.name == wanted.name:
                state = "leaving" if raas.leaving else "running" if raas.ready else "starting"
                return RaasInPool(
                    name=wanted.name,
                    number=wanted.number,
                    state=state,  # type: ignore[arg-type]
                    host=raas.host,
                    pid=raas.pid,
                    cpu_s=raas.cpu_s,
                )
        return RaasInPool(name=wanted.name, number=wanted.number, state="waiting")

    def _end_run(self, run: PooledRun, why: str) -> None:
        log.info("run %s ends: %s", run.key, why)
        del self.runs[run.key]
        for raas in self._of(run.key):
            raas.ending = True

    # -- hosts -------------------------------------------------------------------------------------

    def renew_host(self, message: RenewHost, now: float, wall: float) -> HostRenewed:
        """A host says what it runs, and learns what it is to run."""
        host = self.hosts.get(message.host)
        lease_s = self.file.pool.host_lease_s
        if host is not None and host.id != message.id:
            if (left := host.heard + lease_s - now) > 0:
                raise Refused(
                    409,
                    f"host {message.host!r} is in this pool already; give --name, or wait until that process is silent for "
                    f"{lease_s:g} s ({left:.0f} s more)",
                )
            self._lose(host, "its process was replaced")
            host = None
        if host is None:
            host = PooledHost(message.host, message.id, message.slots, message.places, now)
            self.hosts[host.name] = host
            log.info("host %s joins with %d slots", host.name, host.slots)
        host.heard, host.slots, host.places = now, message.slots, message.places
        known = set()
        for report in message.seats:
            known.add((report.run, report.raas, report.start))
            self._hear(host, report, now)
        self.advance(now, wall)
        orders = [
            SeatOrder(
                run=raas.run,
                raas=raas.name,
                start=raas.start,
                places=raas.places,
                directory=raas.directory,
                launcher=raas.launcher,
                environment={} if (raas.run, raas.name, raas.start) in known else raas.environment,
            )
            for raas in self.raas
            if raas.host == host.name and not raas.ending
        ]
        stop = host.draining and not any(raas.host == host.name for raas in self.raas)
        return HostRenewed(lease_s=lease_s, every_s=self.file.pool.every_s, seats=orders, stop=stop)

    def _hear(self, host: PooledHost, report: SeatReport, now: float) -> None:
        found = [
            raas
            for raas in self.raas
            if (raas.host, raas.run, raas.name, raas.start)
            == (host.name, report.run, report.raas, report.start)
        ]
        for raas in found:
            most = TOKENS_PER_PLACE_S * host.places * (now - raas.since + _SLACK_S)
            if report.tokens > most:
                raise Refused(
                    400,
                    f"{raas.name} of run {raas.run!r}: {report.tokens:g} tokens are more than {host.places} places can have "
                    f"generated since it was ordered ({most:g})",
                )
            self._count(raas, *raas.on_report(report, now), now)
            run = self.runs.get(raas.run)
            if run is not None and raas.ready:
                run.served = True
            if report.state == "ended":
                self.raas.remove(raas)
                if run is not None and not raas.leaving:
                    run.ended[raas.name] = EndedRaas(
                        raas.number,
                        host.name,
                        raas.pid,
                        raas.cpu_s,
                        report.exit_code,
                        list(report.last_lines),
                    )

    def leave_host(self, message: LeaveHost, now: float, wall: float) -> Remaining:
        """A host is gone, and nothing runs there."""
        host = self.hosts.get(message.host)
        if host is None or host.id != message.id:
            raise Refused(404, f"this pool has no host {message.host!r} of this process")
        self._lose(host, "it left")
        self.advance(now, wall)
        return Remaining()

    def drain_host(self, message: DrainHost, now: float, wall: float) -> Remaining:
        """Its RaaS finish their tasks; then it gets a notice to leave."""
        host = self.hosts.get(message.host)
        if host is None:
            known = ", ".join(sorted(self.hosts)) or "none"
            raise Refused(404, f"this pool has no host {message.host!r}; it has {known}")
        host.draining = True
        self.advance(now, wall)
        return Remaining(remaining=sum(raas.host == host.name for raas in self.raas))

    def _lose(self, host: PooledHost, why: str) -> None:
        log.warning("host %s is no longer in the pool: %s", host.name, why)
        del self.hosts[host.name]
        self.raas = [raas for raas in self.raas if raas.host != host.name]

    # -- decisions -----------------------------------------------------------------------------------

    def advance(self, now: float, wall: float) -> None:
        """Everything that follows from time and from received reports."""
        self._charge(now)
        for run in list(self.runs.values()):
            if now - run.heard >= self.file.pool.run_lease_s:
                self._end_run(run, f"its launcher was silent for {now - run.heard:.0f} s")
        for host in list(self.hosts.values()):
            if now - host.heard >= self.file.pool.host_lease_s:
                self._lose(host, f"it was silent for {now - host.heard:.0f} s")
        self._lift()
        self._let_go(now)
        self._place(now, wall)
        for host in self.hosts.values():
            self._share(host, now)

    def weight(self, run: PooledRun) -> float:
        """That of its tenant, divided among the tenant's runs."""
        return run.table.weight / sum(each.tenant == run.tenant for each in self.runs.values())

    def quota_wait_s(self, run: PooledRun, now: float) -> float:
        """Seconds until its tenant may generate again, 0 if it may."""
        return self._windows[run.tenant].wait_s(run.table, now)

    def _of(self, key: str) -> Iterator[PooledRaas]:
        return (raas for raas in self.raas if raas.run == key)

    def _count(self, raas: PooledRaas, tokens: float, episodes: float, now: float) -> None:
        self.accounts[raas.run].tokens += tokens
        if (run := self.runs.get(raas.run)) is not None:
            run.count(tokens, episodes, self.weight(run))
            self._windows[run.tenant].add(tokens, run.table, now)

    def _charge(self, now: float) -> None:
        passed = max(0.0, now - self._moved)
        self._moved = max(now, self._moved)
        for raas in self.raas:
            account = self.accounts[raas.run]
            account.slot_s += passed
            account.place_s += passed * raas.running

    def _competes(self, run: PooledRun) -> bool:
        """Whether it uses the pool, or would: one that waits for a slot does, one that loads its first model does not yet."""
        seats = [raas for raas in self._of(run.key) if not raas.leaving]
        ready = [raas for raas in seats if raas.ready]
        if ready:
            return any(raas.busy for raas in ready)
        return bool(run.wanted()) and (run.served or not seats)

    def _lift(self) -> None:
        """A run that wanted nothing gets no credit for that time."""
        competing = [run for run in self.runs.values() if self._competes(run)]
        for run in self.runs.values():
            if run not in competing:
                run.usage = caught_up(self._usages(run, competing), run.usage)

    def _usages(self, run: PooledRun, rivals: Iterable[PooledRun]) -> list[float]:
        return [
            each.usage
            for each in rivals
            if each is not run and each.table.priority == run.table.priority
        ]

    def _let_go(self, now: float) -> None:
        """End what is not wanted any longer, and what has made room or was given long enough to."""
        for raas in self.raas:
            run, host = self.runs.get(raas.run), self.hosts.get(raas.host)
            if (
                run is None
                or raas.name not in run.wanted()
                or run.wanted()[raas.name].number > raas.number
            ):
                raas.ending = True
            elif not raas.leaving and (
                (host is not None and host.draining)
                or sum(not each.leaving for each in self._of(raas.run)) > self._most(run, now)
            ):
                raas.leaving_since = now
            if raas.leaving_since is not None and not raas.ending:
                waited = now - raas.leaving_since
                told = waited >= 2 * self.file.pool.every_s
                done = told and (raas.running == 0 or not raas.ready)
                raas.ending = done or waited >= self.file.pool.drain_s

    def _place(self, now: float, wall: float) -> None:
        slots = {host.name: host.slots for host in self.hosts.values() if not host.draining}
        seats = [
            Seat(raas.host, raas.run, now - raas.since, self._gives_room(raas, now), raas.leaving)
            for raas in self.raas
        ]
        moves = place(slots, seats, self._wants(now), self.file.pool.turn_s)
        for host, key in moves.end:
            for raas in self._of(key):
                if raas.host == host:
                    raas.leaving_since = now
        for host, key in moves.start:
            self._begin(host, self.runs[key], now, wall)

    def _gives_room(self, raas: PooledRaas, now: float) -> bool:
        run = self.runs.get(raas.run)
        return raas.idle(now) or (run is not None and self.quota_wait_s(run, now) > 0)

    def _wants(self, now: float) -> list[Want]:
        return [
            Want(run.key, self.weight(run), run.usage, self._most(run, now), run.table.priority)
            for run in self.runs.values()
        ]

    def _most(self, run: PooledRun, now: float) -> int:
        """RaaS that a run may have now: what it wants, within the slots of its tenant, which its runs divide. What is left over of
        them goes around with the turns."""
        if self.quota_wait_s(run, now) > 0:
            return sum(not raas.leaving for raas in self._of(run.key))
        most = len(run.wanted())
        if run.table.max_slots is None:
            return most
        runs = [each for each in self.runs.values() if each.tenant == run.tenant]
        turn = (runs.index(run) + int(now // self.file.pool.turn_s)) % len(runs)
        each, left = divmod(run.table.max_slots, len(runs))
        return min(most, each + (turn < left))

    def _begin(self, host: str, run: PooledRun, now: float, wall: float) -> None:
        taken = {raas.name for raas in self._of(run.key)}
        free = [each for name, each in run.wanted().items() if name not in taken]
        if not free:  # what leaves elsewhere still has the name
            return
        self._start = max(self._start + 1, int(wall * 1000))
        environment = {**free[0].environment, "ASTRAFLOW_START": str(self._start)}
        self.raas.append(
            PooledRaas(
                run.key,
                free[0].name,
                self._start,
                free[0].number,
                host,
                now,
                environment,
                run.message.directory,
                run.message.id,
            )
        )

    def _share(self, host: PooledHost, now: float) -> None:
        here = [raas for raas in self.raas if raas.host == host.name]
        there = [raas for raas in here if raas.ready and not raas.leaving]
        claims = [self._claim(raas, self.runs[raas.run], now) for raas in there]
        taken = sum(raas.running for raas in here if raas.leaving)
        given = share_places(max(0, host.places - taken), claims)
        for raas in here:
            raas.grant(given.get(raas.run, 0) if raas in there else 0, now)

    def _claim(self, raas: PooledRaas, run: PooledRun, now: float) -> Claim:
        unit = run.message.unit
        use = max(2 * raas.peak, raas.peak + 2 * unit)
        return Claim(
            run=raas.run,
            weight=self.weight(run),
            usage=run.usage + self._elsewhere(raas, run),
            unit=unit,
            most=min(run.message.most, int(use) // unit * unit or unit),
            tokens=run.episode_tokens,
            running=raas.running,
            priority=run.table.priority,
            busy=raas.busy,
            blocked=self.quota_wait_s(run, now) > 0,
        )

    def _elsewhere(self, raas: PooledRaas, run: PooledRun) -> float:
        """The usage by episodes that run on other hosts."""
        running = sum(each.running for each in self._of(run.key) if each is not raas)
        return running * run.episode_tokens / self.weight(run)
