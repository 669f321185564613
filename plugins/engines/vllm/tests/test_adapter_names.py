"""Which of the server's adapters a request gets when names change hands, and when a server's adapter ends. On the stand-in; that
they sample what they should is in ``test_adapters.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from vllm_stand_in import StandIn, request, underway, with_engine

from astraflow_core.errors import UserError, WeightsError, WrongVersion
from astraflow_core.types import WeightSource
from astraflow_plugin_vllm.config import VllmConfig
from astraflow_plugin_vllm.engine import VllmEngine
from astraflow_wire.model_files.model_digest import digest_of_model
from astraflow_wire.model_files.tensor_file import lay_out

pytestmark = pytest.mark.timeout(30)
GENERATE, LOAD, UNLOAD = (
    "/inference/v1/generate",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
)


class CountsAdapters(StandIn):
    """Numbers adapters in the order in which they were loaded, as a worker does."""

    async def answer(self, request: web.Request) -> web.Response:
        found = await super().answer(request)
        if request.path == "/collective_rpc" and found.status == 200:
            return web.json_response({"results": [str(self.calls.count(LOAD))]})
        return found

    def removed(self) -> list[int]:
        """Numbers that were removed from the workers."""
        asked = self.bodies["/collective_rpc"]
        return [each["kwargs"]["lora_id"] for each in asked if each["method"] == "remove_lora"]


@pytest.fixture
def model(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
def adapter(tmp_path: Path, model: Path) -> WeightSource:
    module = "base_model.model.model.layers.0.mlp.down_proj"
    header, specs = lay_out(
        (f"{module}.lora_{side}.weight", "F32", shape)
        for side, shape in (("A", (2, 96)), ("B", (32, 2)))
    )
    file = tmp_path / "adapter.safetensors"
    file.write_bytes(header + bytes(specs[-1].end - len(header)))
    base = digest_of_model([model / "model.safetensors"])
    return WeightSource("p", 1, file, "", 0, 0.0, "adapter", base)


def test_a_request_keeps_its_adapter_and_the_server_does_as_long(
    tmp_path: Path, model: Path, adapter: WeightSource
) -> None:
    async def scenario(engine: VllmEngine, stand_in: CountsAdapters) -> None:
        await engine.load_adapter("a", adapter)
        first = stand_in.bodies[LOAD][-1]
        runs = await underway(engine, stand_in, replace(request("runs"), adapter="a"))
        assert stand_in.bodies[GENERATE][-1]["model"] == first["lora_name"]
        await engine.load_adapter("a", replace(adapter, version=2))
        stand_in.hang = False
        later = await engine.generate(replace(request("later", pinned=2), adapter="a"))
        assert set(later.versions.tolist()) == {2}
        second = stand_in.bodies[LOAD][-1]["lora_name"]
        assert stand_in.bodies[GENERATE][-1]["model"] == second != first["lora_name"]
        assert UNLOAD not in stand_in.bodies and Path(first["lora_path"]).is_dir()
        with pytest.raises(UserError, match="2 adapters that requests still run with"):
            await engine.load_adapter("a", replace(adapter, version=3))
        await engine.abort(["runs"])
        assert (await runs).finish_reason == "abort"
        assert stand_in.bodies[UNLOAD] == [{"lora_name": first["lora_name"]}]
        assert stand_in.removed() == [2]  # the first is that of the versions
        assert not Path(first["lora_path"]).exists()
        await engine.load_adapter("a", None)
        assert stand_in.removed() == [2, 3]
        with pytest.raises(WrongVersion, match="'a' is not loaded; engine 'vllm' has none"):
            await engine.generate(replace(request(), adapter="a"))

    with_engine(scenario, tmp_path, model, CountsAdapters, lora_rank=2, named_adapters=1)


def test_an_adapter_that_the_server_refuses_leaves_the_one_before(
    tmp_path: Path, model: Path, adapter: WeightSource
) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        await engine.load_adapter("a", adapter)
        stand_in.refuse, stand_in.status = {LOAD: 1}, 400
        with pytest.raises(WeightsError, match=r"vLLM refused version 2: .*does not fit"):
            await engine.load_adapter("a", replace(adapter, version=2))
        assert not Path(stand_in.bodies[LOAD][-1]["lora_path"]).exists()
        kept = await engine.generate(replace(request(), adapter="a"))
        assert set(kept.versions.tolist()) == {1}
        places = [Path(body["lora_path"]) for body in stand_in.bodies[LOAD]]
        await asyncio.sleep(0)
        assert [place.exists() for place in places] == [False, True, False]

    stand_in = with_engine(scenario, tmp_path, model, CountsAdapters, lora_rank=2, named_adapters=1)
    assert not Path(stand_in.bodies[LOAD][1]["lora_path"]).exists()  # the engine was closed


def test_names_need_a_key(tmp_path: Path, model: Path, adapter: WeightSource) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        assert engine.most_adapters == 0
        with pytest.raises(UserError, match="only with named_adapters above 0"):
            await engine.load_adapter("a", adapter)

    with_engine(scenario, tmp_path, model, lora_rank=2)
    with pytest.raises(ValueError, match="named_adapters needs lora_rank"):
        VllmConfig(named_adapters=1)
