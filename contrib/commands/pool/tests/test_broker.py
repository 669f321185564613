"""What a pool decides, by its calls and a clock of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from astraflow_contrib_pool.broker.broker import Broker
from astraflow_contrib_pool.broker.ledger import Account, read_ledger, write_ledger
from astraflow_contrib_pool.broker.limits import EARLIER, MinuteLimit, merge_earlier
from astraflow_contrib_pool.broker.reports import exporter_text, pool_status
from astraflow_contrib_pool.config import PoolFile
from astraflow_contrib_pool.messages import (
    DrainHost,
    HostRenewed,
    LeaveHost,
    LeaveRun,
    RaasInPool,
    RenewHost,
    RenewRun,
    SeatOrder,
    SeatReport,
    WantedRaas,
)
from astraflow_core.errors import Refused

TOKEN = {"ASTRAFLOW_TOKEN": "secret-of-the-run"}


class Pool:
    """A broker, hosts that follow its orders, and RaaS that generate ``speed`` tokens per place and second."""

    def __init__(self, **tables: Any) -> None:
        pool = {"turn_s": 10.0, "drain_s": 5.0, **tables.pop("pool", {})}
        tenants = tables.pop("tenants", {"ada": {"weight": 3.0}, "bob": {}})
        file = PoolFile.model_validate({"pool": pool, "tenants": tenants, **tables})
        self.broker = Broker(file, {}, 0.0)
        self.now = 0.0
        self.wants: dict[str, RenewRun] = {}
        self.hosts: dict[str, tuple[int, int]] = {}
        self.orders: dict[str, list[SeatOrder]] = {}
        self.running: dict[str, dict[int, int]] = {}
        self.tokens: dict[int, float] = {}
        self.ended: dict[str, list[SeatReport]] = {}
        self.speed = dict[str, float]()
        self.deaf = set[str]()

    def run(self, tenant: str, name: str, raas: int = 1, number: int = 1, **keys: Any) -> None:
        wanted = [
            WantedRaas(name=f"raas-{n}", number=number, environment=TOKEN) for n in range(raas)
        ]
        self.wants[f"{tenant}/{name}"] = RenewRun(run=name, id=keys.pop("id", "launcher"), directory=f"/runs/{tenant}-{name}", unit=4, most=64, raas=wanted)  # fmt: skip

    def host(self, name: str, slots: int = 2, places: int = 16) -> None:
        self.hosts[name] = (slots, places)

    def renew(self, key: str) -> list[RaasInPool]:
        return self.broker.renew_run(key.partition("/")[0], self.wants[key], self.now, 1e9 + self.now).raas  # fmt: skip

    def renew_host(self, name: str) -> HostRenewed:
        slots, places = self.hosts[name]
        seats = [self._report(name, order) for order in self.orders.get(name, [])]
        message = RenewHost(host=name, id="process", slots=slots, places=places, seats=[*seats, *self.ended.pop(name, [])])  # fmt: skip
        reply = self.broker.renew_host(message, self.now, 1e9 + self.now)
        kept = {order.start for order in reply.seats}
        self.ended[name] = [
            SeatReport(run=o.run, raas=o.raas, start=o.start, state="ended")
            for o in self.orders.get(name, [])
            if o.start not in kept
        ]
        self.orders[name] = list(reply.seats)
        return reply

    def _report(self, host: str, order: SeatOrder) -> SeatReport:
        running = self.running.setdefault(host, {})
        idle = self.speed.get(order.run, 1.0) == 0
        running[order.start] = 0 if idle else order.places // 4 * 4
        made = self.tokens.get(order.start, 0.0) + 0.5 * running[order.start] * self.speed.get(order.run, 1.0)  # fmt: skip
        self.tokens[order.start] = made
        return SeatReport(run=order.run, raas=order.raas, start=order.start, state="ready", pid=7, running=running[order.start], tokens=made)  # fmt: skip

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            self.now += 0.5
            for key in self.wants:
                self.renew(key)
            for name in self.hosts:
                if name not in self.deaf:
                    self.renew_host(name)

    def tokens_of(self, key: str) -> float:
        return self.broker.accounts[key].tokens

    def held(self, key: str) -> int:
        return sum(raas.run == key and not raas.leaving for raas in self.broker.raas)


def test_two_runs_get_tokens_by_their_weights_and_a_third_changes_only_shares() -> None:
    pool = Pool()
    pool.host("one", 3)
    pool.speed = {"bob/b": 5.0}
    for tenant, name in (("ada", "a"), ("bob", "b")):
        pool.run(tenant, name)
    pool.pass_s(120)
    assert pool.tokens_of("ada/a") / pool.tokens_of("bob/b") == pytest.approx(3, rel=0.05)
    pool.run("bob", "flood", raas=64)
    before = pool.tokens_of("ada/a"), pool.tokens_of("bob/b"), 0.0
    pool.pass_s(200)
    a, b, f = (
        pool.tokens_of(k) - old
        for k, old in zip(("ada/a", "bob/b", "bob/flood"), before, strict=True)
    )
    # Runs of one tenant divide its share; the other tenant keeps its own.
    assert a / (a + b + f) == pytest.approx(0.75, abs=0.04) and b == pytest.approx(f, rel=0.1)  # fmt: skip


def test_a_run_that_was_idle_gets_no_credit_and_costs_nothing_meanwhile() -> None:
    pool = Pool()
    pool.host("one")
    pool.run("ada", "a")
    pool.run("bob", "b")
    pool.speed = {"ada/a": 0.0}
    pool.pass_s(60)
    assert pool.tokens_of("ada/a") == 0 and pool.tokens_of("bob/b") > 0.8 * 60 * 16
    pool.speed = {}
    before = pool.tokens_of("bob/b")
    pool.pass_s(60)
    grown = pool.tokens_of("bob/b") - before
    assert pool.tokens_of("ada/a") / grown == pytest.approx(3, rel=0.15)


def test_a_launcher_that_is_killed_loses_its_raas_in_time() -> None:
    pool = Pool(pool={"turn_s": 100.0})
    pool.host("one", 1)
    pool.run("ada", "a")
    pool.pass_s(5)
    del pool.wants["ada/a"]
    pool.run("bob", "b")
    pool.pass_s(14)
    assert pool.held("ada/a") == 1
    pool.pass_s(3)
    assert pool.held("ada/a") == 0 and pool.held("bob/b") == 1


def test_a_quota_of_tokens_holds_and_ends() -> None:
    pool = Pool(tenants={"ada": {"max_tokens": 200, "window_s": 60.0}, "bob": {}})
    pool.host("one")
    pool.run("ada", "a")
    pool.pass_s(50)
    assert 200 <= pool.tokens_of("ada/a") <= 200 + 2 * 16
    status = pool_status(pool.broker, pool.now, 1.0, "ada")
    assert "quota of 200 tokens" in status.runs[0].waits_for
    pool.pass_s(30)
    assert pool.tokens_of("ada/a") > 300


def test_slots_of_a_tenant_are_bounded() -> None:
    pool = Pool(tenants={"ada": {"max_slots": 2}})
    for name in ("one", "two", "three"):
        pool.host(name)
    pool.run("ada", "a", raas=3)
    pool.run("ada", "b", raas=3)
    for _ in range(8):
        pool.pass_s(5)
        assert pool.held("ada/a") + pool.held("ada/b") <= 2
    pool.run("ada", "c", raas=3)
    pool.pass_s(120)
    assert all(pool.tokens_of(f"ada/{name}") > 120 * 4 for name in "abc")


def test_more_runs_than_slots_take_turns_and_leave_their_tasks_ended() -> None:
    pool = Pool(tenants={"ada": {}, "bob": {}, "cyd": {}})
    pool.host("one", 1)
    for tenant in ("ada", "bob", "cyd"):
        pool.run(tenant, "r")
    pool.pass_s(400)
    shares = [pool.tokens_of(f"{tenant}/r") for tenant in ("ada", "bob", "cyd")]
    assert min(shares) > 0.85 * max(shares)
    assert sum(shares) > 0.7 * 400 * 16


def test_a_raas_that_failed_waits_for_its_launcher() -> None:
    pool = Pool()
    pool.host("one")
    pool.run("ada", "a")
    pool.pass_s(2)
    (order,) = pool.orders.pop("one")
    pool.ended["one"] = [SeatReport(run=order.run, raas=order.raas, start=order.start, state="ended", exit_code=-9, last_lines=["boom"])]  # fmt: skip
    pool.pass_s(2)
    (state,) = pool.renew("ada/a")
    assert (state.state, state.exit_code, state.last_lines) == ("ended", -9, ["boom"])
    assert pool.held("ada/a") == 0
    pool.run("ada", "a", number=2)
    pool.pass_s(2)
    assert pool.renew("ada/a")[0].state == "running"
    assert pool.orders["one"][0].start > order.start


def test_a_host_that_is_lost_or_drained_or_late() -> None:
    pool = Pool()
    pool.host("one")
    pool.run("ada", "a")
    pool.pass_s(2)
    pool.deaf.add("one")
    pool.host("late")
    pool.pass_s(16)
    assert [raas.host for raas in pool.broker.raas] == ["late"]
    pool.broker.drain_host(DrainHost(host="late"), pool.now, 0.0)
    assert not pool.renew_host("late").stop
    pool.pass_s(8)
    assert pool.renew_host("late").stop
    pool.broker.leave_host(LeaveHost(host="late", id="process"), pool.now, 0.0)
    (state,) = pool.renew("ada/a")
    assert state.state == "waiting"
    assert "none is in the pool" in pool_status(pool.broker, pool.now, 1.0, None).runs[0].waits_for


def test_secrets_travel_once_and_only_to_the_host() -> None:
    pool = Pool()
    pool.host("one")
    pool.run("ada", "a")
    pool.renew("ada/a")
    first = pool.renew_host("one").seats[0]
    assert first.environment["ASTRAFLOW_TOKEN"] == TOKEN["ASTRAFLOW_TOKEN"]
    assert pool.renew_host("one").seats[0].environment == {}
    assert "secret" not in repr(pool.broker.raas)


def test_a_tenant_sees_its_own_runs_and_the_ledger_has_costs() -> None:
    pool = Pool(prices={"slot_hour": 3600.0, "million_tokens": 1e6})
    pool.host("one")
    pool.run("ada", "a")
    pool.run("bob", "b")
    pool.pass_s(10)
    status = pool_status(pool.broker, pool.now, 10.0, "bob")
    assert [run.run for run in status.runs] == ["bob/b"] and status.hosts == []
    account = pool.broker.accounts["bob/b"]
    assert account.cost(pool.broker.file.prices) == pytest.approx(account.slot_s + account.tokens)
    assert account.slot_s == pytest.approx(9.5, abs=1)
    assert 'astraflow_pool_raas{run="ada/a"} 1' in exporter_text(
        pool_status(pool.broker, pool.now, 10.0, None)
    )


def refused(status: int, call: Any) -> str:
    with pytest.raises(Refused) as error:
        call()
    assert error.value.status == status
    return str(error.value)


def test_what_is_refused() -> None:
    pool = Pool(tenants={"ada": {"max_runs": 1}})
    pool.host("one")
    pool.run("ada", "a")
    pool.pass_s(1)
    pool.run("ada", "a", id="another")
    assert "another launcher" in refused(409, lambda: pool.renew("ada/a"))
    pool.run("ada", "b")
    assert "max_runs" in refused(409, lambda: pool.renew("ada/b"))
    other = WantedRaas(name="raas-0", number=1, environment={"LD_PRELOAD": "x.so"})
    message = RenewRun(run="c", id="x", directory="/", unit=1, most=1, raas=[other])
    assert "LD_PRELOAD" in refused(400, lambda: pool.broker.renew_run("ada", message, 1.0, 1.0))
    host = RenewHost(host="one", id="other", slots=1, places=1, seats=[])
    assert "is in this pool already" in refused(409, lambda: pool.broker.renew_host(host, pool.now, 0.0))  # fmt: skip
    refused(404, lambda: pool.broker.drain_host(DrainHost(host="two"), pool.now, 0.0))
    refused(404, lambda: pool.broker.leave_host(LeaveHost(host="one", id="other"), pool.now, 0.0))
    refused(404, lambda: pool.broker.leave_run("ada", LeaveRun(run="a", id="zzz"), pool.now, 0.0))


def test_a_directory_belongs_to_the_run_whose_raas_have_served() -> None:
    pool = Pool()
    pool.host("one")
    pool.run("bob", "b")
    pool.run("ada", "a")
    pool.wants["bob/b"] = msgspec.structs.replace(pool.wants["bob/b"], directory="/runs/./ada-a")
    pool.renew("bob/b")  # came first, and has shown nothing
    pool.renew("ada/a")
    pool.renew_host("one")
    pool.orders["one"] = [order for order in pool.orders["one"] if order.run == "ada/a"]
    assert pool.orders["one"][0].launcher == "launcher"
    pool.now += 0.5
    pool.renew_host("one")
    assert "uses /runs/./ada-a" in refused(409, lambda: pool.renew("bob/b"))
    assert pool.renew("ada/a")[0].state == "running"


def test_tokens_that_places_cannot_have_generated_are_refused() -> None:
    pool = Pool()
    pool.host("one", places=2)
    pool.run("ada", "a")
    pool.renew("ada/a")
    pool.renew_host("one")
    order = pool.orders["one"][0]
    pool.tokens[order.start] = 1e9
    pool.now += 0.5
    assert "more than 2 places" in refused(400, lambda: pool.renew_host("one"))
    assert pool.tokens_of("ada/a") == 0


def test_joins_of_a_tenant_are_limited_and_those_of_others_not() -> None:
    pool = Pool()
    most = MinuteLimit().most
    for n in range(most):
        pool.run("ada", f"r{n}", raas=0)
        pool.renew(f"ada/r{n}")
        pool.broker.leave_run("ada", LeaveRun(run=f"r{n}", id="launcher"), pool.now, 0.0)
    pool.run("ada", "more", raas=0)
    assert "again in 60 s" in refused(429, lambda: pool.renew("ada/more"))
    pool.run("bob", "b", raas=0)
    pool.renew("bob/b")
    pool.now += 61
    pool.renew("ada/more")


def test_accounts_of_earlier_runs_are_added_up() -> None:
    accounts = {f"ada/r{n}": Account(tokens=1.0, slot_s=2.0, seen=n) for n in range(9)}
    accounts["bob/r"] = Account(tokens=5.0)
    for _ in range(2):
        merge_earlier(accounts, "ada", {"ada/r0"}, most=4)
        own = {key: account for key, account in accounts.items() if key.startswith("ada/")}
        assert own.keys() == {"ada/r0", "ada/r7", "ada/r8", f"ada/{EARLIER}"}
        assert sum(account.tokens for account in own.values()) == 9
        assert own[f"ada/{EARLIER}"].slot_s == 12
    assert accounts["bob/r"].tokens == 5


def test_a_quota_survives_a_restart_for_its_window(tmp_path: Path) -> None:
    pool = Pool(tenants={"ada": {"max_tokens": 200, "window_s": 60.0}})
    pool.host("one")
    pool.run("ada", "a")
    pool.pass_s(50)
    wall = 1e9 + pool.now
    write_ledger(tmp_path, pool.broker.ledger(pool.now, wall))
    kept = read_ledger(tmp_path)
    for later, waits in ((5.0, 5.0), (20.0, 0.0), (-1000.0, 60.0)):
        broker = Broker(pool.broker.file, kept.accounts, 7.0)
        broker.resume(kept.windows, 7.0, wall + later)
        broker.renew_run("ada", pool.wants["ada/a"], 7.0, wall)
        assert broker.quota_wait_s(broker.runs["ada/a"], 7.0) == pytest.approx(waits)
