"""Which requests go through a router, and what does not go with one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from astraflow_core.types import GenerateRequest, Sampling
from astraflow_plugin_vllm.backend import VllmBackend
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.images import RequestImages
from astraflow_serving.desk import Flight
from astraflow_serving.model_folder import ModelFolder
from astraflow_tiny_model.folder import write_tiny_model

SERVERS = ("http://a", "http://b")


class Silent:
    """A server that gets no requests."""

    url = SERVERS[0]

    async def stop(self) -> None:
        return None


class Asked:
    """A stand-in for a client, which records the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Any]] = []

    async def ask(self, path: str, body: Any, headers: Any = None) -> bytes:
        self.calls.append((path, body, headers))
        raise asyncio.CancelledError

    async def post(self, path: str, body: Any = None) -> bytes:
        self.calls.append((path, body, None))
        return b""

    async def close(self) -> None:
        return None


def test_requests_are_routed_and_salted_each_for_itself(tmp_path: Path) -> None:
    folder = ModelFolder.read(write_tiny_model(tmp_path / "model"))
    images = RequestImages(folder.path)

    async def main() -> None:
        config = VllmConfig(url=SERVERS, router="http://r")
        backend = VllmBackend(Silent(), config, folder, 64, images)  # type: ignore[arg-type]
        for client in (backend.client, backend.routes._router, *backend.routes._others):
            await client.close()  # type: ignore[union-attr]
        assert [client.url for client in backend.routes._others] == ["http://b"]
        own, router, other = Asked(), Asked(), Asked()
        backend.client = backend.routes._own = own  # type: ignore[assignment]
        backend.routes._router, backend.routes._others = router, [other]  # type: ignore[assignment, list-item]
        for number, pinned in enumerate((None, None, 0)):
            request = GenerateRequest(
                f"r{number}", np.array([5, 7], np.int32), Sampling(4), "s", pinned_version=pinned
            )
            flight = Flight(request, f"f{number}", asyncio.Future())
            with pytest.raises(asyncio.CancelledError):
                await backend.ask_sample(flight)
        await backend.end([flight])
        await backend.close()
        salts = [body["cache_salt"] for _, body, _ in router.calls]
        assert len(set(salts)) == 2  # which version the server has is not known
        assert [headers for *_, headers in router.calls] == [{"X-Session-ID": "s"}] * 2
        assert own.calls[0][1]["cache_salt"].endswith(".0")
        assert [path for path, *_ in own.calls[1:]] == ["/abort_requests"]
        assert [path for path, *_ in other.calls] == ["/abort_requests"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"router": "http://r"}, "a router needs url"),
        ({"url": "ftp://a"}, "url"),
        ({"url": ("unix:/run/vllm", "10.0.0.1:8000")}, "url"),
        ({"url": SERVERS, "router": "unix:/run/router"}, "router"),
        (
            {"router": "http://r", "url": SERVERS, "lora_rank": 8},
            "adapters have a name on each server",
        ),
    ],
)
def test_keys_that_cannot_be_are_refused(keys: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        VllmConfig(**keys)
