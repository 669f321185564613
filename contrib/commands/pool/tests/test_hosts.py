"""A host of a pool: its behaviour while the pool does not respond, and the pool after its own host is lost."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from pathlib import Path

import pytest
from pools import served_pool

from astraflow_contrib_pool import serving
from astraflow_contrib_pool.broker.ledger import Ledger
from astraflow_contrib_pool.config import PoolFile, read_pool
from astraflow_contrib_pool.host import PoolHost
from astraflow_contrib_pool.messages import DrainHost, Remaining
from astraflow_core.errors import UserError
from astraflow_wire.host.private_folder import PrivateFolder
from astraflow_wire.http.client import SyncClient

TOKEN = "the-token-of-this-pool"


def test_a_pool_serves_on_when_its_own_host_was_drained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = PoolFile.model_validate({"pool": {"every_s": 0.05}, "host": {}, "tenants": {"a": {}}})
    caplog.set_level(logging.INFO, "astraflow.pool")

    def drain() -> None:
        url = json.loads((tmp_path / serving.ADDRESS).read_text())["url"]
        client = SyncClient(url, TOKEN)
        try:
            drain = DrainHost(host=client.get_json("/v1/status", deadline_s=5)["hosts"][0]["name"])
            client.post("/v1/hosts/drain", drain, Remaining, deadline_s=5)
            while client.get_json("/v1/status", deadline_s=5)["hosts"]:
                pass
        finally:
            client.close()

    async def serve() -> None:
        pool = asyncio.create_task(serving._serve(file, tmp_path, TOKEN, "127.0.0.1", 0, Ledger()))
        while "joins" not in caplog.text and not pool.done():
            await asyncio.sleep(0.01)
        await asyncio.to_thread(drain)
        while "goes on without" not in caplog.text:
            await asyncio.sleep(0.01)
        assert not pool.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(pool, 20)

    asyncio.run(serve())
    assert (tmp_path / "ledger.json").exists()


def test_a_host_says_that_it_waits_and_joins_when_the_pool_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow_contrib_pool.host._FIRST_CALL_S", 0.05)
    caplog.set_level(logging.INFO, "astraflow.pool")

    async def dial(url: str, token: str, until: str) -> None:
        host = PoolHost(url, token, "h", 1, 1)
        running = asyncio.create_task(host.run())
        while until not in caplog.text and not running.done():
            await asyncio.sleep(0.01)
        host.stopping.set()
        await asyncio.wait_for(running, 20)

    asyncio.run(dial("http://127.0.0.1:9", TOKEN, "waiting for the pool at http://127.0.0.1:9"))
    assert "joins" not in caplog.text and "refused" in caplog.text
    with served_pool(tmp_path) as pool:
        asyncio.run(dial(pool.url, pool.token(), "host h joins"))
        with pytest.raises(UserError, match="401"):
            asyncio.run(dial(pool.url, "wrong", "never"))


def test_an_unknown_key_of_the_file_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text("[tenants.ada]\nwieght = 3\n[hots]\n")
    with pytest.raises(UserError, match="did you mean 'weight'") as error:
        read_pool(path)
    assert "did you mean 'host'" in str(error.value)


def test_a_host_removes_models_that_killed_hosts_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path))
    used = PrivateFolder(tmp_path, "pool-models-")
    left = tmp_path / "pool-models-left"
    left.mkdir()
    (left / "lock").touch()
    (left / "model.safetensors").write_bytes(b"weights")

    async def serve() -> None:
        host = PoolHost("http://127.0.0.1:9", TOKEN, "one", 1, 1)
        host.stopping.set()
        await host.run()

    asyncio.run(serve())
    assert list(tmp_path.glob("pool-models-*")) == [used.path]
    used.close()
