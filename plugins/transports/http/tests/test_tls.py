"""Weights of a run with ``[tls]``: publishers, relays, and the server from which engines request deliveries."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from astraflow_core.errors import Refused, WeightsError
from astraflow_core.types import Delivery
from astraflow_testing.tls_files import write_tls
from astraflow_weights.direct.delivery_server import DeliveryServer, Joining
from astraflow_weights.fetch import receiver
from astraflow_weights.publish import fan_out, server
from astraflow_wire.http.auth import bearer
from astraflow_wire.http.tls import (
    AUTHORITY,
    CERTIFICATE,
    CLIENT_CERTIFICATES,
    PRIVATE_KEY,
    RunTls,
    client_tls,
    give_process,
)

TOKEN = "a-token-of-the-run"
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (AUTHORITY, CERTIFICATE, PRIVATE_KEY, CLIENT_CERTIFICATES):
        monkeypatch.setenv(key, "")  # so that it is as before at the end


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> RunTls:
    return write_tls(tmp_path_factory.mktemp("tls"), client_certificates=True)


def test_versions_travel_over_tls_and_by_relays(
    rig: Any,
    announce: Any,
    read: Any,
    raw: Any,
    model: Any,
    tls: RunTls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fan_out, "DIRECT", 1)
    monkeypatch.setattr(receiver, "RELAY_STALL_S", 30)
    give_process(tls)
    publisher = rig.publisher()
    assert publisher.endpoints[0].startswith("https://127.0.0.1:")
    manifest = publisher.publish(1, model())
    told = announce(manifest, *publisher.endpoints)
    first, second = rig.receiver(relay=True), rig.receiver(relay=True)
    for each in (first, second):
        assert read(each.fetch(told, 20).path) == raw(model())


def fetched(rig: Any, announce: Any, model: Any, publishes: RunTls, receives: RunTls | None) -> str:
    """The error of a receiver that cannot fetch a version."""
    give_process(publishes)
    publisher = rig.publisher()
    told = announce(publisher.publish(1, model(blocks=1)), *publisher.endpoints)
    if receives is None:
        told = replace(told, endpoints=(told.endpoints[0].replace("https", "http"),))
        with pytest.MonkeyPatch.context() as patched:
            patched.delenv(AUTHORITY)
            return _refused(rig, told)
    give_process(receives)
    return _refused(rig, told)


def _refused(rig: Any, told: Any) -> str:
    with pytest.raises(WeightsError) as refused:
        rig.receiver().fetch(told, 20)
    return str(refused.value)


def test_a_publisher_is_not_asked_in_clear_text(
    rig: Any, announce: Any, model: Any, tls: RunTls
) -> None:
    assert "400: this service speaks HTTPS only" in fetched(rig, announce, model, tls, None)
    give_process(tls)
    plain = announce(rig.publisher().publish(1, model(blocks=1)), "http://127.0.0.1:9")
    assert "would be called in clear text" in _refused(rig, plain)


def test_a_publisher_of_another_run_is_named(
    rig: Any, announce: Any, model: Any, tls: RunTls, tmp_path: Path
) -> None:
    foreign = write_tls(tmp_path / "foreign")
    said = fetched(rig, announce, model, foreign, tls)
    assert "SHA-256" in said and f"the authority {tls.authority} has not signed" in said


def test_a_receiver_without_a_certificate_is_refused(
    rig: Any, announce: Any, model: Any, tls: RunTls
) -> None:
    said = fetched(rig, announce, model, tls, RunTls(tls.authority))
    assert "asks for a client certificate" in said and CERTIFICATE in said


def test_deliveries_are_asked_for_over_tls(tls: RunTls) -> None:
    def meet(version: int, asked: Joining) -> Delivery:
        raise Refused(409, f"{asked.member} asks for {version}")

    give_process(tls)
    with closing(DeliveryServer("127.0.0.1", "solver", TOKEN, meet)) as desk:
        parts = urlsplit(json.loads(desk.where("127.0.0.1"))["ask"])
        assert parts.scheme == "https"
        context = client_tls(parts.geturl())
        asking = http.client.HTTPSConnection("127.0.0.1", parts.port, timeout=20, context=context)
        with closing(asking):
            body = json.dumps({"member": "me", "workers": 1})
            asking.request("POST", f"{parts.path}/7", body, {"Authorization": f"Bearer {TOKEN}"})
            answer = asking.getresponse()
            assert (answer.status, json.loads(answer.read())) == (409, {"error": "me asks for 7"})
        plain = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=20)
        with closing(plain):
            plain.request("POST", f"{parts.path}/7", body)
            assert plain.getresponse().status == 400


def test_an_idle_connection_is_closed(
    rig: Any, tls: RunTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_S", 0.1)
    give_process(tls)
    parts = urlsplit(rig.publisher().endpoints[0])
    asking = http.client.HTTPSConnection(
        "127.0.0.1", parts.port, timeout=20, context=tls.client_context()
    )
    with closing(asking):
        asking.request("GET", "/v1/weights/solver/1/manifest", None, bearer(TOKEN))
        assert asking.getresponse().read() and asking.sock.recv(1) == b""
