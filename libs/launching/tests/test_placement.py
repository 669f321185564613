"""Processes are shared out between hosts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from astraflow_core.errors import PreflightError
from astraflow_core.protocols.launcher import ProcessSpec, Role
from astraflow_launching.keys import HostsKeys, ResourceKeys
from astraflow_launching.placement import HostResources, Placement, check_counts, check_names


def spec(name: str, ranks: int = 1) -> ProcessSpec:
    roles: dict[str, Role] = {"t": "trainer", "r": "raas", "d": "dataflow"}
    return ProcessSpec(name, roles[name[0]], ("true",), {}, Path("log"), ranks)


def keys(**tables: Any) -> ResourceKeys:
    return ResourceKeys.model_validate(tables)


def host(name: str, gpus: int = 0, **more: Any) -> HostResources:
    return HostResources(name, 8, 64, tuple(map(str, range(gpus))), **more)


def test_processes_without_needs_are_spread_and_share_the_cores() -> None:
    specs = [spec(name) for name in ("d", "t", "r0", "r1", "r2")]
    places = Placement(keys(), [host("one"), host("two")], policies=2).place(specs)
    assert set(Counter(place.host for place in places.values()).values()) == {2, 3}
    assert list(places) == ["d", "t", "r0", "r1", "r2"]
    for name in ("one", "two"):
        parts = {"d": 0, "t": 1, "r": 2}
        used = sum(p.threads * parts[n[0]] for n, p in places.items() if p.host == name)
        assert 4 <= used <= 8


def test_each_gpu_has_one_owner_and_labels_are_kept() -> None:
    needs = keys(trainer={"gpus": 2, "labels": ["big"]}, raas={"gpus": 1})
    hosts = [host("one", 2), host("two", 3, labels=frozenset({"big"}))]
    places = Placement(needs, hosts).place([spec(n) for n in ("r0", "r1", "r2", "t")])
    assert places["t"].host == "two" and len(places["t"].gpus) == 2
    owned = [(place.host, gpu) for place in places.values() for gpu in place.gpus]
    assert len(owned) == len(set(owned)) == 5


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"raas": {"gpus": 3}}, "2 of 2 GPUs left, 3 are needed"),
        ({"raas": {"cpus": 9}}, "8 of 8 CPUs left, 9 are needed"),
        ({"raas": {"memory_gb": 65}}, "64 of 64 GB left, 65 are needed"),
        ({"raas": {"labels": ["x"]}}, "has no label x"),
        ({"processes": {"r0": {"gpus": 3}}}, "no host has room for r0"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(tables: Any, expected: str) -> None:
    with pytest.raises(PreflightError, match=expected):
        Placement(keys(**tables), [host("one", 2)]).place([spec("r0")])


def test_spot_hosts_take_only_what_says_so() -> None:
    hosts = [host("steady"), host("cheap", spot=True)]
    places = Placement(keys(raas={"spot": True}), hosts).place([spec("d"), spec("t"), spec("r0")])
    assert {places["d"].host, places["t"].host} == {"steady"} and places["r0"].host == "cheap"
    with pytest.raises(PreflightError, match="spot"):
        Placement(keys(), hosts[1:]).place([spec("r0")])


def test_a_role_stays_on_so_many_hosts() -> None:
    hosts = [host(name) for name in "abcd"]
    specs = [spec(f"r{index}") for index in range(6)]
    places = Placement(keys(raas={"count": 2}), hosts).place(specs)
    assert Counter(place.host for place in places.values()) == {"a": 3, "b": 3}


def test_a_process_of_a_lost_host_gets_another_place() -> None:
    placement = Placement(keys(raas={"gpus": 1}), [host("one", 1), host("two", 2)])
    before = dict(placement.place([spec("r0"), spec("r1")]))
    (lost,) = (name for name, place in before.items() if place.host == "one")
    (kept,) = before.keys() - {lost}
    placement.remove_host("one")
    assert placement.add(spec(lost)).host == "two"
    gpus = [placement.places[name].gpus for name in (lost, kept)]
    assert gpus[0] != gpus[1] == before[kept].gpus and placement.places[kept].host == "two"
    with pytest.raises(PreflightError):
        placement.add(spec("r2"))


@given(st.lists(st.integers(0, 4), max_size=6), st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_no_host_gives_more_than_it_has(hosts: list[int], needs: list[int]) -> None:
    table = {f"r{index}": {"gpus": count} for index, count in enumerate(needs)}
    there = [host(f"h{index}", count) for index, count in enumerate(hosts)]
    placement = Placement(keys(processes=table), there)
    try:
        places = placement.place([spec(name) for name in table])
    except PreflightError:
        return
    owned = [(place.host, gpu) for place in places.values() for gpu in place.gpus]
    assert len(owned) == len(set(owned)) == sum(needs)
    assert all(gpu in {g for h in there if h.name == name for g in h.gpus} for name, gpu in owned)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"hosts": []}, "hosts is empty"),
        ({"hosts": ["a", {"name": "a"}]}, "a appears more than once"),
        ({"hosts": ["-oProxyCommand=x"]}, "hosts"),
        ({"raas": {"gpu": 1}}, "gpu"),
    ],
)
def test_mistakes_in_the_keys_are_named(table: Any, expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        HostsKeys.model_validate(table).tables  # noqa: B018


def test_needs_of_a_process_that_the_run_has_not_are_refused() -> None:
    specs = [spec("d"), spec("t"), spec("r0")]
    check_names(keys(processes={"t": {"gpus": 1}, "raas-7": {"gpus": 1}}), specs)
    with pytest.raises(PreflightError, match="no process 't-nobody'; this run has d, t, r0"):
        check_names(keys(processes={"t-nobody": {"gpus": 100}}), specs)


def test_a_role_cannot_be_on_more_hosts_than_there_are() -> None:
    check_counts(keys(raas={"count": 2}), 2)
    with pytest.raises(PreflightError, match=r"\[launcher.raas\] count is 5.* 1 host:"):
        check_counts(keys(raas={"count": 5}), 1)
