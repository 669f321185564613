"""Every route of the dataflow × every role, and tokens that are none, wrong, ended, revoked or of another run."""

from __future__ import annotations

import asyncio
import json
import stat

import httpx
import pytest
from fastapi import APIRouter

from astraflow_runtime.audit_log import FILE, read_audit
from astraflow_runtime.dataflow.http.access_records import REVOKED, AccessRecords
from astraflow_runtime.dataflow.http.rights import RIGHTS
from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_wire import messages
from astraflow_wire.http.access import ROLES, process_token
from astraflow_wire.http.auth import bearer

pytestmark = pytest.mark.timeout(60)
TOKEN = "the-token-of-this-run"
NAMES = {"raas": "raas-0", "trainer": "solver", "operator": "ada", "viewer": "bob"}
PLUGIN = "/v1x/of-a-plugin"


@pytest.fixture
def app(bench, config, tmp_path):
    async def of_a_plugin() -> str:
        return "here"

    router = APIRouter()
    router.add_api_route(PLUGIN, of_a_plugin, methods=["GET", "POST"])
    wakeups = Wakeups()
    made = bench(config(), signals=wakeups)
    return DataflowService(made.flow, wakeups, TOKEN, [router], AccessRecords(tmp_path / "run")).app


def ask(app, method: str, path: str, token: str | None, content: bytes = b"\xc0") -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://flow") as client:
            return await client.request(
                method, path, headers=bearer(token or ""), content=content, timeout=20
            )

    return asyncio.run(main())


def routes(app) -> list[tuple[str, str]]:
    """Every method and path that the service answers, without the stream, which never ends."""
    found = [
        (method, route.path)
        for route in app.routes
        if hasattr(route, "methods")  # others are routers, of plugins
        for method in route.methods - {"HEAD"}
        if not route.path.endswith("/events")
    ]
    return sorted({*found, ("GET", PLUGIN), ("POST", PLUGIN)})


def test_each_route_by_each_role(app):
    every = routes(app)
    posts = {path for method, path in every if method == "POST"}
    assert posts - {PLUGIN} == RIGHTS.keys() and len(every) > 20
    own = {role: process_token(TOKEN, role, name) for role, name in NAMES.items()}
    assert own.keys() == set(ROLES)
    wrong = {
        "none": None,
        "wrong": "another",
        "ended": process_token(TOKEN, "operator", "ada", 0, 1000),
        "of another run": process_token("another", "operator", "ada"),
    }
    for method, path in every:
        for who, token in wrong.items():
            assert ask(app, method, path, token).status_code == 401, (method, path, who)
        for role, token in own.items():
            if path in RIGHTS:
                may = role == RIGHTS[path]
            elif path.startswith("/v1/"):
                may = method == "GET"
            else:
                may = role == "operator" or (role == "viewer" and method == "GET")
            status = ask(app, method, path, token).status_code
            assert (status != 403) == may, (method, path, role, status)
            assert status != 401
        assert ask(app, method, path, TOKEN).status_code not in (401, 403), (method, path)


def registration(name: str) -> bytes:
    message = messages.RegisterRaas(
        raas=name, pid=1, host="h", policies=["solver"], capacity=8, origin="o"
    )
    return messages.encode(message)


def test_a_process_may_send_messages_in_its_own_name_only(app):
    token = process_token(TOKEN, "raas", "raas-0")
    path = "/v1/raas/register"
    assert ask(app, "POST", path, token, registration("raas-0")).status_code == 200
    answer = ask(app, "POST", path, token, registration("raas-1"))
    assert (answer.status_code, answer.json()["error"]) == (
        403,
        "the token of raas 'raas-0' does not include requests in the name of 'raas-1'",
    )
    trainer = process_token(TOKEN, "trainer", "verifier")
    message = messages.RegisterTrainer(policy="solver", pid=1, host="h")
    answer = ask(app, "POST", "/v1/trainers/register", trainer, messages.encode(message))
    assert answer.status_code == 403 and "in the name of 'solver'" in answer.text


def test_who_changes_the_run_is_written_down(app, tmp_path):
    stop = messages.encode(messages.StopRun(reason="enough"))
    operator = process_token(TOKEN, "operator", "ada")
    drain = messages.encode(messages.DrainRaas(raas="nobody", author="eve"))
    assert ask(app, "POST", "/v1/raas/drain", operator, drain).status_code == 404
    assert ask(app, "POST", "/v1/stop", TOKEN, stop).status_code == 200
    text = (tmp_path / "run" / FILE).read_text()
    first, second = map(json.loads, text.splitlines())
    assert (first["role"], first["name"], first["request"]) == ("operator", "ada", "/v1/raas/drain")
    assert first["who"] == first["asked"]["author"] == "eve" and first["outcome"].startswith(
        "refused: "
    )
    assert (second["role"], second["reason"], second["outcome"]) == (
        "run",
        "enough",
        "done",
    )
    assert operator not in text and TOKEN not in text
    raas = process_token(TOKEN, "raas", "raas-0")
    assert ask(app, "POST", "/v1/stop", raas, stop).status_code == 403
    last, *_ = read_audit(tmp_path / "run")
    assert (last.role, last.name, last.request) == ("raas", "raas-0", "/v1/stop")
    assert last.outcome.startswith("refused: ")


def test_a_stream_ends_with_its_token(app, monkeypatch):
    async def reports(*_):
        for number in range(100):
            await asyncio.sleep(0)
            yield f"data: {number}\n\n"

    monkeypatch.setattr("astraflow_runtime.dataflow.http.service.balance_events", reports)
    token, access = process_token(TOKEN, "viewer", "bob"), app.state.access
    path = "/v1/balance/events"
    assert ask(app, "GET", path, token).text.count("data:") == 100
    grant, asked = access.grant, []

    def revoked_after_ten(header):
        asked.append(header)
        return grant(header) if len(asked) <= 11 else None

    monkeypatch.setattr(access, "grant", revoked_after_ten)
    assert ask(app, "GET", path, token).text.count("data:") == 10


def test_revoked_tokens_stay_so_after_a_restart(app, bench, config, tmp_path):
    token = process_token(TOKEN, "viewer", "bob")
    revoke = messages.encode(messages.RevokeToken(role="viewer", name="bob", author="ada"))
    assert ask(app, "GET", "/v1/status", token).status_code == 200
    operator = process_token(TOKEN, "operator", "ada")
    assert ask(app, "POST", "/v1/access/revoke", operator, revoke).status_code == 200
    assert ask(app, "GET", "/v1/status", token).status_code == 401
    file = tmp_path / "run" / REVOKED
    assert json.loads(file.read_text()) == {"viewer/bob": 1}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    records = AccessRecords(tmp_path / "run")
    again = DataflowService(bench(config()).flow, Wakeups(), TOKEN, (), records).app
    assert ask(again, "GET", "/v1/status", token).status_code == 401
    assert ask(again, "GET", "/v1/access", operator).json() == {"oldest": {"viewer/bob": 1}}
    newer = process_token(TOKEN, "viewer", "bob", 1)
    assert ask(again, "GET", "/v1/status", newer).status_code == 200
