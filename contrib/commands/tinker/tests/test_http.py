"""Endpoints without a loaded model: authorization, and the replies to wrong requests."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard
from fastapi.testclient import TestClient
from tinker_cases import service

from astraflow_contrib_tinker.routes.bodies import MOST_METADATA
from astraflow_contrib_tinker.routes.training import MOST_BODY_BYTES
from astraflow_contrib_tinker.service import IDLE_S, Service
from astraflow_contrib_tinker.serving import API, tinker_app
from astraflow_contrib_tinker.wire import protobuf
from astraflow_contrib_tinker.work.store import Saved
from astraflow_runtime.audit_log import read_audit

KEY = "tml-secret"


@pytest.fixture
def found(tmp_path: Path) -> Service:
    return service(tmp_path)


@pytest.fixture
def client(found: Service) -> Iterator[TestClient]:
    app = tinker_app(found, {KEY: ""})
    with TestClient(app, base_url=f"http://127.0.0.1{API}/", headers={"X-API-Key": KEY}) as opened:
        yield opened


def post(client: TestClient, path: str, body: dict[str, Any] | bytes, **headers: str) -> Any:
    content: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    return client.post(path, headers=headers, **content)


def session(client: TestClient) -> str:
    return str(post(client, "create_session", {"tags": []}).json()["session_id"])


def test_no_endpoint_answers_without_the_key(client: TestClient) -> None:
    readme = Path(__file__).parent.parent / "README.md"
    listed = [
        (line.split()[1], path)
        for line in readme.read_text(encoding="utf-8").splitlines()
        for path in re.findall(r"`(/api/v1/[^`]*)`", line)
    ]
    assert len(listed) == 34
    for key in ("", "tml-", KEY[:-1], KEY + "x", "Bearer " + KEY):
        for method, path in listed if not key else [("GET", f"{API}/healthz")]:
            if "/signed/" in path:
                continue  # has no key but a signature
            url = f"http://127.0.0.1{path}"
            found = client.request(method, url, headers={"X-API-Key": key})
            assert found.status_code == 401 and found.json()["category"] == "user", (method, path)
    for method, path in listed:
        found = client.request(method, f"http://127.0.0.1{path}", content=b"")
        unrouted = found.status_code in (404, 405) and "Not Found" in found.text
        assert not unrouted and found.status_code != 405, (method, path, found.text)
    assert client.get("healthz").json() == {"status": "ok"}


def test_exported_files_are_fetched_by_their_links_alone(
    client: TestClient, found: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = found.store.begin("a", "external_weights", "name", False)
    (folder / "weights").write_bytes(b"content")
    found.store.finish(folder, Saved("a", "external_weights", "name", "base", 0, 1, 2.0))
    place = "training_runs/a/checkpoints/external_weights/name"
    told = client.get(f"{place}/external_weights_urls").json()
    link = told["urls"].pop("weights")
    assert told["urls"] == {}  # not what the server notes there
    until = datetime.fromisoformat(told["expires"]).timestamp()
    assert 3500 < until - time.time() <= 3600

    def fetched(link: str) -> tuple[int, bytes]:
        found = client.get(link, headers={"X-API-Key": ""})
        return found.status_code, found.content

    assert fetched(link) == (200, b"content")
    for wrong in (
        link.replace("/weights?", "/about.json?"),
        link.replace("/weights?", "/..%2Fname%2Fweights?"),
        link.replace("/name/", "/other/"),
        re.sub("until=[0-9]+", f"until={int(until) + 9999}", link),
        link[:-1] + "é",
        link.partition("?")[0] + "?until=1&signature=",
    ):
        assert fetched(wrong)[0] in (403, 404), wrong
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: until + 1)
        status, said = fetched(link)
        assert status == 403 and b"no longer valid" in said
    assert client.put(f"{place}/ttl", json={"ttl_seconds": 3599}).status_code == 400
    assert client.put(f"{place}/ttl", json={"ttl_seconds": 3600}).status_code == 200
    (listed,) = client.get("training_runs/a/checkpoints").json()["checkpoints"]
    assert listed["checkpoint_type"] == "external" and listed["expires_at"]
    assert client.delete(place).status_code == 200
    assert fetched(link)[0] == client.get(f"{place}/external_weights_urls").status_code == 404


UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "optim_step": ({"adam_params": {}}, "there is no model"),
    "save_weights": ({}, "there is no model"),
    "save_weights_for_sampler": ({"path": "a"}, "there is no model"),
    "save_weights_external": ({"path": "a"}, "there is no model"),
    "get_info": ({}, "there is no model"),
    "load_weights": ({"path": "tinker://a/weights/b", "optimizer": False}, "there is no model"),
    "session_heartbeat": ({"session_id": "x"}, "there is no session 'x'"),
    "create_model": (
        {"session_id": "x", "model_seq_id": 0, "base_model": "test/tiny"},
        "there is no session 'x'",
    ),
    "retrieve_future": ({"request_id": "other-1"}, "this server has made no request 'other-1'"),
    "asample": (
        {"sampling_session_id": "x:0", "prompt": {"chunks": []}, "sampling_params": {}},
        "there is no sampling session 'x:0'",
    ),
}


@pytest.mark.parametrize("path", UNKNOWN)
def test_what_is_unknown_is_named(client: TestClient, path: str) -> None:
    body, said = UNKNOWN[path]
    found = post(client, path, {"model_id": "nobody:train:0", "seq_id": 1, **body})
    assert found.status_code == 404 and said in found.json()["error"]
    assert found.json()["category"] == "user"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"base_model": "other"}, "this server has 'test/tiny'"),
        ({"optimizer_config": {"type": "dimuon"}}, "this server has adamw"),
        ({"lora_config": {"rank": 4096}}, "lora_config.rank"),
        ({"lora_config": {"rank": 4, "train_mlp": False}}, "lora_targets"),
        ({"model_seq_id": "x"}, "model_seq_id"),
    ],
)
def test_a_model_that_cannot_be_made(client: TestClient, change: dict[str, Any], said: str) -> None:
    body = {"session_id": session(client), "model_seq_id": 0, "base_model": "test/tiny", **change}
    found = post(client, "create_model", body)
    assert found.status_code == 400 and said in found.json()["error"]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"temperature": -1}, "sampling_params.temperature"),
        ({"max_tokens": 0}, "sampling_params.max_tokens"),
        ({"seed": 1}, "seed: engines of this server have none"),
        ({"stop": ["a"] * 17}, "at most 16"),
        ({"stop": ""}, "none of them empty"),
        (
            {"stop": [3, 1 << 40]},
            f"stop: the token id {1 << 40} is outside the vocabulary, 0 to 26",
        ),
        ({"stop": [27]}, "stop: the token id 27 is outside the vocabulary, 0 to 26"),
        ({"stop": [-1]}, "stop: the token id -1 is outside"),
    ],
)
def test_sampling_that_is_not_possible(
    client: TestClient, params: dict[str, Any], said: str
) -> None:
    made = {"session_id": session(client), "sampling_session_seq_id": 0, "base_model": "test/tiny"}
    sampler = post(client, "create_sampling_session", made).json()["sampling_session_id"]
    body = {
        "sampling_session_id": sampler,
        "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": params,
    }
    found = post(client, "asample", body)
    assert found.status_code == 400 and said in found.json()["error"]
    body |= {"sampling_params": {}, "topk_prompt_logprobs": 3}
    assert "topk_prompt_logprobs" in post(client, "asample", body).json()["error"]
    body |= {"topk_prompt_logprobs": 0, "record_stability_info": True}
    assert "which the loss stable_reinforce needs" in post(client, "asample", body).json()["error"]


def nothing(tensor: Any) -> None:
    """Change nothing."""


def gradient(
    model_id: str, seq_id: int, change: Callable[[Any], object], loss: str = "cross_entropy"
) -> bytes:
    """A request for a sequence of one token; ``change`` is made to its first input."""
    asked = protobuf.ForwardBackwardRequest(model_id=model_id, seq_id=seq_id, loss_fn=loss)
    datum = asked.data.add()
    datum.model_input.add().encoded_text.tokens = b"\1\0\0\0"
    tensor = datum.loss_fn_inputs.add(key="target_tokens").value
    tensor.dense, tensor.dtype = bytes(8), protobuf.INT64
    change(tensor)
    return bytes(asked.SerializeToString())


def test_a_mistake_fails_its_request_and_holds_up_no_other(
    client: TestClient, found: Service
) -> None:
    """The client increments its sequence number even if a request is refused: the next request must not wait for that
    number."""
    model = found.create_model(found.sessions[session(client)], 0, 0, None, {})
    model.order.start()

    def of(**body: Any) -> bytes:
        return json.dumps({"model_id": model.id, **body}).encode()

    mistakes: list[tuple[str, bytes, str]] = [
        ("optim_step", of(seq_id=1, adam_params={"learning_rate": -1}), "learning_rate"),
        ("optim_step", of(seq_id=2, optimizer_params={"type": "dimuon"}), "steps of AdamW"),
        ("load_weights", of(seq_id=3, path="tinker://a/weights/b", optimizer=False), "was saved"),
        ("forward", gradient(model.id, 4, lambda t: setattr(t, "dtype", 9)), "the dtype 9"),
        ("forward", gradient(model.id, 5, lambda t: t.shape.append(7)), "the shape [7]"),
        ("save_weights", of(seq_id=6, path="../x"), "at most 100"),
        ("save_weights_for_sampler", of(seq_id=7), "give path"),
        ("forward", gradient(model.id, 8, nothing, "stable_reinforce"), "stable_reinforce: this"),
    ]
    for path, body, said in mistakes:
        sent = post(client, path, body)
        assert sent.status_code == 200, sent.text
        outcome = post(client, "retrieve_future", sent.json()).json()
        assert said in outcome["error"] and outcome["category"] == "user"


def test_bodies_are_bounded(client: TestClient) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(MOST_BODY_BYTES + 1))
    found = post(client, "forward_backward", bomb, **{"content-encoding": "zstd"})
    assert found.status_code == 413 and "decompressed" in found.json()["error"]
    cut = zstandard.ZstdCompressor().compress(bytes(1000))[:-3]
    found = post(client, "forward_backward", cut, **{"content-encoding": "zstd"})
    assert found.status_code == 400 and "of 1000 bytes" in found.json()["error"]
    large = {"user_metadata": {"a": "b" * MOST_METADATA}}
    assert "user_metadata has more" in post(client, "create_session", large).json()["error"]
    found = post(client, "forward_backward", bytes(MOST_BODY_BYTES + 1))
    assert found.status_code == 413
    assert post(client, "forward_backward", b"\xff" * 40).status_code == 400
    assert post(client, "optim_step", b"{").status_code == 400
    asked = protobuf.ForwardBackwardRequest(model_id="nobody:train:0", seq_id=1, loss_fn="ppo")
    asked.data.add().model_input.add().encoded_text.tokens = b"\1\0\0\0"
    assert post(client, "forward_backward", asked.SerializeToString()).status_code == 404


def test_runs_and_sessions_are_listed(client: TestClient) -> None:
    one = session(client)
    assert client.get(f"sessions/{one}").json()["training_run_ids"] == []
    assert client.get("training_runs").json()["cursor"]["total_count"] == 0
    assert client.get("checkpoints").json()["checkpoints"] == []
    assert client.get("training_runs?limit=0").status_code == 422
    assert client.get("training_runs/nobody").status_code == 404
    assert post(client, f"sessions/{one}/finish", {}).status_code == 200
    assert client.get(f"sessions/{one}").status_code == 404
    assert client.delete("training_runs/a/checkpoints/other/b").status_code == 400
    assert client.delete("training_runs/a/checkpoints/weights/b").status_code == 404
    info = post(client, "weights_info", {"tinker_path": "../../etc"})
    assert (
        info.status_code == 400 and "expected tinker://MODEL/weights/NAME" in info.json()["error"]
    )


def test_a_model_leaves_while_the_server_runs(
    client: TestClient, found: Service, tmp_path: Path
) -> None:
    """What waits for it fails, another model can take its place, and nothing of it is kept."""
    found.keep_every, one = 1, session(client)
    model = found.create_model(found.sessions[one], 0, 0, 1, {})
    assert model.kept is not None and model.kept.folder.is_dir()
    body = json.dumps({"model_id": model.id, "seq_id": 1, "path": "x"}).encode()
    waits = post(client, "save_weights", body).json()
    assert client.delete(f"training_runs/{model.id}").status_code == 200
    outcome = post(client, "retrieve_future", waits).json()
    assert "was removed while the request waited" in outcome["error"]
    assert client.get(f"sessions/{one}").json()["training_run_ids"] == []
    assert not model.kept.folder.exists()
    assert client.delete(f"training_runs/{model.id}").status_code == 404
    assert "there is no model" in post(client, "save_weights", body).json()["error"]


def test_who_ended_or_deleted_what_is_in_the_audit_log(client: TestClient, found: Service) -> None:
    one = session(client)
    model = found.create_model(found.sessions[one], 0, 0, 1, {}).id
    found.create_model(found.sessions[one], 1, 0, 1, {})
    folder = found.store.begin(model, "weights", "a", False)
    found.store.finish(folder, Saved(model, "weights", "a", "test/tiny", 0, 1, 0.0, 0, 0, ""))
    checkpoint = f"training_runs/{model}/checkpoints/weights/a"
    client.put(f"{checkpoint}/ttl", json={"ttl_seconds": 3600})
    client.delete(checkpoint)
    client.delete(checkpoint)
    client.delete(f"training_runs/{model}")
    post(client, f"sessions/{one}/finish", {})
    two = session(client)
    found.create_model(found.sessions[two], 0, 0, 1, {})
    found.sessions[two].seen -= 2 * IDLE_S
    session(client)  # which ends those that are idle
    lines = read_audit(found.store.directory)[::-1]
    what = {"model": model, "kind": "weights", "name": "a"}
    assert [(line.request, line.asked) for line in lines] == [
        ("PUT ttl", {**what, "ttl_seconds": 3600}),
        ("DELETE checkpoints", what),
        ("DELETE checkpoints", what),
        ("DELETE training_runs", {"model": model}),
        ("finish", {"session": one, "models": [f"{one}:train:1"]}),
        ("no heartbeat", {"session": two, "models": [f"{two}:train:0"]}),
    ]
    assert lines[2].outcome.startswith("refused: ")
    assert {line.outcome for line in (*lines[:2], *lines[3:])} == {"done"}
    assert {line.by for line in lines} == {"tinker"}


def test_a_sample_without_waiting_callers_is_cancelled(client: TestClient, found: Service) -> None:
    one = session(client)
    assert post(client, "client/dynamic_config", {}).json()["sample_cancel_enabled"]
    samples, numbered = found.promises.make(one), found.promises.make(one, id=f"{one}:train:0:1")
    for promise in (samples, numbered):
        assert post(client, "cancel_future", {"request_id": promise.id}).status_code == 200
    assert post(client, "cancel_future", {"request_id": "unknown"}).status_code == 200
    told = post(client, "retrieve_future", {"request_id": samples.id}).json()
    assert told["error"] == "the request was cancelled by its client"
    assert numbered.outcome is None
