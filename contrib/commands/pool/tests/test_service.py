"""The endpoints of a pool: authorization, and refused requests."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from pools import TOKEN, ServedPool, served_pool

from astraflow_contrib_pool.access import pool_token
from astraflow_contrib_pool.broker.limits import MinuteLimit
from astraflow_contrib_pool.config import PoolLauncherConfig
from astraflow_contrib_pool.launcher import PoolLauncher
from astraflow_contrib_pool.messages import LeaveRun, RenewHost, RenewRun, WantedRaas
from astraflow_contrib_pool.run_folder import OWNER, OwnedRunFolder
from astraflow_core.errors import PreflightError
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_core.types import ComponentContext
from astraflow_testing.conformance.subject import context
from astraflow_wire.http.access import process_token
from astraflow_wire.messages import Message, encode

SECRET = "token-of-a-run-of-ada"
ROLES = ("pool", "host", "ada", "bob")
MAY = {
    ("POST", "/v1/runs/renew"): {"ada", "bob"},
    ("POST", "/v1/runs/leave"): {"ada", "bob"},
    ("POST", "/v1/hosts/renew"): {"pool", "host"},
    ("POST", "/v1/hosts/leave"): {"pool", "host"},
    ("POST", "/v1/hosts/drain"): {"pool"},
    ("GET", "/v1/status"): {"pool", "ada", "bob"},
    ("GET", "/v1/ledger"): {"pool", "ada", "bob"},
    ("GET", "/v1/health"): set(ROLES),
    ("GET", "/metrics"): {"pool"},
}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[ServedPool]:
    with served_pool(tmp_path) as served:
        yield served


def ask(
    pool: ServedPool, method: str, path: str, token: str | None, body: bytes = b""
) -> tuple[int, bytes]:
    parts = urlsplit(pool.url)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)) as line:
        line.request(method, path, body, headers)
        answer = line.getresponse()
        return answer.status, answer.read()


def post(pool: ServedPool, path: str, token: str, message: Message) -> tuple[int, bytes]:
    return ask(pool, "POST", path, token, encode(message))


def token_of(pool: ServedPool, role: str) -> str:
    return {"pool": TOKEN, "host": pool.token()}.get(role) or pool.token(role)


def run_of(name: str = "r") -> RenewRun:
    raas = [WantedRaas(name="raas-0", number=1, environment={"ASTRAFLOW_TOKEN": SECRET})]
    return RenewRun(run=name, id="launcher", directory=f"/runs/{name}", unit=8, most=64, raas=raas)


def test_each_endpoint_is_open_to_its_roles_alone(pool: ServedPool) -> None:
    routes = {
        (method, route.path)  # type: ignore[attr-defined]
        for route in pool.service.app.routes
        for method in route.methods or ()  # type: ignore[attr-defined]
        if method != "HEAD"
    }
    assert routes == MAY.keys()
    for (method, path), roles in MAY.items():
        for role in ROLES:
            status, body = ask(pool, method, path, token_of(pool, role), b"x")
            refused = status == 403
            assert refused == (role not in roles), (method, path, role, status)
            assert b"does not include" not in body or b"astraflow pool token" in body
            assert status < 500 and (status < 300 or "error" in json.loads(body))


@pytest.mark.parametrize("path", [path for _, path in MAY])
def test_no_other_token_is_let_in(pool: ServedPool, path: str) -> None:
    method = next(method for method, each in MAY if each == path)
    strangers = [
        None,
        "",
        TOKEN[:-1],
        pool_token("another-pool", "tenant", "ada"),
        pool_token(TOKEN, "tenant", "ada", 1),
        pool_token(TOKEN, "tenant", "eve"),
        pool.token("ada") + "x",
        process_token(TOKEN, "operator", "ada"),
        process_token(TOKEN, "viewer", "ada"),
    ]
    for stranger in strangers:
        status, body = ask(pool, method, path, stranger, b"x")
        assert status == 401 and json.loads(body)["error"], stranger


def test_a_higher_generation_revokes_a_token(tmp_path: Path) -> None:
    with served_pool(tmp_path, tenants={"ada": {"generation": 2}}) as pool:
        assert ask(pool, "GET", "/v1/status", pool.token("ada", 1))[0] == 401
        assert ask(pool, "GET", "/v1/status", pool.token("ada", 2))[0] == 200


def test_a_tenant_neither_sees_nor_touches_runs_of_others(pool: ServedPool) -> None:
    assert post(pool, "/v1/runs/renew", pool.token("ada"), run_of())[0] == 200
    leave = LeaveRun(run="r", id="launcher")
    assert post(pool, "/v1/runs/leave", pool.token("bob"), leave)[0] == 404
    assert b"ada" not in ask(pool, "GET", "/v1/status", pool.token("bob"))[1]
    assert ask(pool, "GET", "/v1/ledger", pool.token("bob"))[1] == b"[]"
    # The same name is another run.
    assert post(pool, "/v1/runs/renew", pool.token("bob"), run_of())[0] == 200
    assert set(pool.service.broker.runs) == {"ada/r", "bob/r"}
    assert post(pool, "/v1/runs/leave", pool.token("ada"), leave)[0] == 200
    assert set(pool.service.broker.runs) == {"bob/r"}


def test_malformed_bodies_change_nothing(pool: ServedPool) -> None:
    good = msgspec.to_builtins(run_of())
    for key, wrong in {
        "run": "../../etc",
        "unit": 0,
        "directory": "/" + "x" * 1024,
        "id": "a/b",
        "most": 1 << 40,
        "raas": [good["raas"][0] | {"name": "trainer-solver"}],
        "more": 1,
    }.items():
        body = msgspec.msgpack.encode(good | {key: wrong})
        status, said = ask(pool, "POST", "/v1/runs/renew", pool.token("ada"), body)
        assert status == 400 and json.loads(said)["error"], key
    places = {"host": "h", "id": "p", "slots": 1, "places": 1 << 20, "seats": []}
    body = msgspec.msgpack.encode(places)
    assert ask(pool, "POST", "/v1/hosts/renew", pool.token(), body)[0] == 400
    large = b"x" * (5 << 20)
    assert ask(pool, "POST", "/v1/runs/renew", pool.token("ada"), large)[0] == 413
    assert ask(pool, "POST", "/v1/runs/renew", pool.token("eve"), large)[0] == 401
    assert pool.service.broker.runs == {}


def test_what_changes_the_pool_and_what_is_refused_is_audited(pool: ServedPool) -> None:
    post(pool, "/v1/runs/renew", pool.token("ada"), run_of())
    host = RenewHost(host="gpu-0", id="p", slots=1, places=8, seats=[])
    status, body = post(pool, "/v1/hosts/renew", pool.token(), host)
    assert status == 200 and SECRET.encode() in body  # the host needs it
    ask(pool, "GET", "/metrics", pool.token("bob"))
    text = (pool.folder / "audit.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["name"], line["request"], line["outcome"]) for line in lines] == [
        ("ada", "/v1/runs/renew", "joined"),
        ("hosts", "/v1/hosts/renew", "joined"),
        ("bob", "/metrics", "refused: no right"),
    ]
    shown = ask(pool, "GET", "/v1/status", TOKEN)[1] + text.encode()
    assert SECRET.encode() not in shown and b"gpu-0" in shown


def test_a_run_whose_engines_share_devices_with_a_trainer_is_refused(
    pool: ServedPool, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text("[run]\ncolocated = true\n")
    config = PoolLauncherConfig(url=pool.url, token_file=pool.token_file("ada"))
    launcher = PoolLauncher(config, replaced_directory(context("launcher", tmp_path), tmp_path))
    spec = ProcessSpec("raas-0", "raas", (), {}, tmp_path / "log")
    with pytest.raises(PreflightError, match="colocated"):
        launcher.prepare([spec])
    launcher.close()
    assert pool.service.broker.runs == {}


def test_a_run_shows_whose_directory_it_is_and_a_wrong_token_is_named(
    pool: ServedPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = ProcessSpec("raas-0", "raas", (), {}, tmp_path / "log")
    token_file = pool.token_file("ada")
    here = replaced_directory(context("launcher", tmp_path), tmp_path)
    launcher = PoolLauncher(PoolLauncherConfig(url=pool.url, token_file=token_file), here)
    launcher.prepare([spec])
    (run,) = pool.service.broker.runs.values()
    assert OwnedRunFolder(run.message.directory).is_of(run.message.id)
    assert run.message.id not in (tmp_path / OWNER).read_text()
    launcher.start(spec)
    for _ in range(2):
        launcher._renew(5.0)
    assert caplog.text.count("waits in the pool for a host: none is in the pool") == 1
    launcher.close()
    token_file.write_text(pool.token("ada", 3))
    launcher = PoolLauncher(PoolLauncherConfig(url=pool.url, token_file=token_file), here)
    with pytest.raises(PreflightError, match=re.escape(str(token_file))):
        launcher.prepare([spec])
    launcher.close()


def test_refusals_in_the_audit_log_are_bounded(pool: ServedPool) -> None:
    for _ in range(MinuteLimit().most + 5):
        ask(pool, "GET", "/metrics", pool.token("bob"))
    assert len((pool.folder / "audit.jsonl").read_text().splitlines()) == MinuteLimit().most


def replaced_directory(given: ComponentContext, directory: Path) -> ComponentContext:
    return replace(given, run=replace(given.run, directory=directory))
