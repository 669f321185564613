"""Several keys: they do not see each other, have limits, and take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tinker_cases import base_model

from astraflow_contrib_tinker.service import Service
from astraflow_contrib_tinker.serving import API, tinker_app
from astraflow_contrib_tinker.work.access import CURRENT, ClientKey, FairTurns, read_keys
from astraflow_contrib_tinker.work.store import ABOUT, Saved, Store
from astraflow_core.errors import UserError

KEYS = {
    name: ClientKey(name, f"tml-{name}-0123456789abcdef", requests=2, models=1, disk_bytes=100)
    for name in ("ann", "bob")
}


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(base_model(tmp_path), Store(tmp_path / "saved"), 4, 1, 0, KEYS)


@pytest.fixture
def app(service: Service) -> Iterator[TestClient]:
    keys = {key.key: name for name, key in KEYS.items()}
    with TestClient(tinker_app(service, keys), base_url=f"http://127.0.0.1{API}/") as found:
        yield found


def ask(app: TestClient, name: str, path: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"X-API-Key": KEYS[name].key}
    if body is None:
        return app.get(path, headers=headers)
    return app.post(path, json=body, headers=headers)


def test_keys_do_not_see_each_other_and_have_limits(app: TestClient, service: Service) -> None:
    id = ask(app, "ann", "create_session", {}).json()["session_id"]
    model = service.create_model(service.sessions[id], 0, 0, None, {})
    step = {"model_id": model.id, "adam_params": {}}
    sent = [ask(app, "ann", "optim_step", {**step, "seq_id": n}) for n in (1, 2, 3)]
    assert [each.status_code for each in sent] == [200, 200, 429]
    assert "2 requests of your key wait" in sent[2].json()["error"]
    create = {"session_id": id, "model_seq_id": 1, "base_model": "test/tiny"}
    refused = ask(app, "ann", "create_model", create)
    assert refused.status_code == 429 and "1 models of your key" in refused.json()["error"]
    folder = service.store.begin(model.id, "weights", "a", False)
    (folder / "file").write_bytes(bytes(100))
    service.store.finish(
        folder, Saved(model.id, "weights", "a", "test/tiny", 0, 1, 0.0, owner="ann")
    )
    folder = service.store.folder(model.id, "weights", "a")
    path = {"tinker_path": f"tinker://{model.id}/weights/a"}
    of = f"training_runs/{model.id}/checkpoints"
    for name, status in (("ann", 200), ("bob", 404)):
        assert ask(app, name, "session_heartbeat", {"session_id": id}).status_code == status
        assert ask(app, name, "get_info", {"model_id": model.id}).status_code == status
        assert ask(app, name, "weights_info", path).status_code == status
        assert ask(app, name, f"training_runs/{model.id}").status_code == status
        known = int(status == 200)
        assert len(ask(app, name, of).json()["checkpoints"]) == known
        assert len(ask(app, name, "training_runs").json()["training_runs"]) == known
        used = ask(app, name, "usage").json()
        assert [used[n] for n in ("key", "requests", "models", "disk_bytes")] == [
            name, 2 * known, known, 100 * known
        ]  # fmt: skip
    assert ask(app, "bob", "retrieve_future", sent[0].json()).status_code == 404
    service.promises.most_of["ann"] = 9
    save = {"model_id": model.id, "seq_id": 3}
    saved = ask(app, "ann", "save_weights", save).json()
    model.order.start()
    told = ask(app, "ann", "retrieve_future", saved).json()
    assert "your key has saved 0 MiB, as much as it may" in told["error"]
    removed = app.delete(f"{of}/weights/a", headers={"X-API-Key": KEYS["bob"].key})
    assert removed.status_code == 404 and (folder / ABOUT).exists()


def test_keys_take_turns() -> None:
    async def scenario() -> None:
        turns, done = FairTurns(1), list[str]()

        async def work(name: str) -> None:
            CURRENT.set(name)
            async with turns.turn():
                await asyncio.sleep(0)
                done.append(name)

        async with turns.turn():
            many = [asyncio.create_task(work("ann")) for _ in range(5)]
            few = [asyncio.create_task(work("bob")) for _ in range(2)]
            await asyncio.sleep(0)
            many[3].cancel()
        await asyncio.gather(*many, *few, return_exceptions=True)
        assert done == ["ann", "bob", "ann", "bob", "ann", "ann"]
        async with asyncio.timeout(1), turns.turn():
            pass

    asyncio.run(scenario())


def test_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key = KEYS["ann"].key
    file.write_text(f'[ann]\nkey = "{key}"\nmodels = 2\ndisk_gib = 0.5\n', encoding="utf-8")
    wanted = ClientKey("ann", key, 4096, 2, 1 << 29)
    assert read_keys(file) == {"ann": wanted} and key not in repr(wanted)
    wrong = {
        f'[a]\nkey = "{key}"\n[b]\nkey = "{key}"': "each with its own key",
        "": "expected tables",
        '[ann]\nkey = "secret-0123456789abcdef"': "ann.key: expected tml-",
        f'[ann]\nkey = "{key}"\nmodel = 2': "ann.model: Extra inputs",
        f'[ann]\nkey = "{key}"\nmodels = 0': "ann.models: Input should be greater",
        "[ann": "it is not TOML",
    }
    for text, said in wrong.items():
        file.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=said) as error:
            read_keys(file)
        assert "0123456789abcdef" not in str(error.value)
    with pytest.raises(UserError, match="cannot be read"):
        read_keys(tmp_path / "none")
