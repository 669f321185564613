"""The engine with a faulty server: the stand-in fails as each test requires."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from vllm_stand_in import StandIn, request, underway, with_engine

from astraflow_core.errors import AstraFlowError, EngineLost, UserError, WeightsError
from astraflow_core.types import WeightSource
from astraflow_plugin_vllm import engine as engine_module
from astraflow_plugin_vllm.engine import VllmEngine
from astraflow_serving.buckets import Bucket, DeviceMemory, Rendezvous
from astraflow_serving.model_folder import specs_of
from astraflow_wire.model_files.model_digest import digest_of_model
from astraflow_wire.model_files.tensor_file import lay_out

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def model(tmp_path: Path, write_model: Callable[..., Path]) -> Path:
    return write_model(tmp_path / "model")


def source(model: Path, version: int = 1) -> WeightSource:
    return WeightSource("p", version, model / "model.safetensors", "", 0, 0.0)


UPDATE = ["/start_weight_update", "/update_weights", "/finish_weight_update"]


def test_an_update_goes_through_the_four_stages_in_chunks(tmp_path: Path, model: Path) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        await engine.pause("keep")
        stand_in.calls.clear()
        await engine.load_weights(source(model, 7))
        assert stand_in.calls == UPDATE
        (update,) = stand_in.bodies["/update_weights"][-1:]
        assert update["update_info"]["path"] == str(model / "model.safetensors")
        assert "model.norm.weight" in update["update_info"]["names"]
        assert stand_in.bodies["/finish_weight_update"][-1] == {"weight_version": "7"}
        assert (await engine.health())["version"] == 7

    stand_in = with_engine(scenario, tmp_path, model)
    assert stand_in.calls[-1] != "/resume", "a failed or finished update resumes nothing by itself"


@pytest.mark.parametrize("stage", UPDATE[:2])
def test_a_refused_update_brings_the_version_before_back_while_paused(
    tmp_path: Path, model: Path, stage: str
) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        await engine.pause("keep")
        stand_in.refuse = {stage: 1}
        stand_in.calls.clear()
        with pytest.raises(WeightsError, match=r"version 0 is loaded again.*a shape that does not"):
            await engine.load_weights(source(model))
        assert stand_in.calls == UPDATE[: UPDATE.index(stage) + 1] + UPDATE
        assert stand_in.bodies["/finish_weight_update"][-1] == {"weight_version": "0"}
        await engine.resume()
        assert (await engine.health())["version"] == 0
        assert len((await engine.generate(request(pinned=0))).tokens) == 3

    with_engine(scenario, tmp_path, model)


@pytest.mark.parametrize("refuse", [{"/update_weights": 2}, {"/finish_weight_update": 1}])
def test_an_engine_that_cannot_go_back_is_lost_with_all_that_wait(
    tmp_path: Path, model: Path, refuse: dict[str, int]
) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        runs = await underway(engine, stand_in, request("runs"))
        await engine.pause("keep")
        waits = asyncio.ensure_future(engine.generate(request("waits")))
        await asyncio.sleep(0)
        stand_in.refuse = refuse
        with pytest.raises(EngineLost, match=r"refused version 1.*then version 0"):
            await engine.load_weights(source(model))
        assert stand_in.killed == 1
        for sent in (runs, waits):
            with pytest.raises(EngineLost):
                await sent

    with_engine(scenario, tmp_path, model)


def test_weights_are_not_loaded_while_anything_may_be_computed(tmp_path: Path, model: Path) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        with pytest.raises(RuntimeError, match="only while it is paused"):
            await engine.load_weights(source(model))

    with_engine(scenario, tmp_path, model)


def test_a_server_that_is_gone_is_distinguished_from_one_that_refuses(
    tmp_path: Path, model: Path
) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        path = "/inference/v1/generate"
        stand_in.refuse = {path: 1}
        with pytest.raises(AstraFlowError, match="500 a shape") as refused:
            await engine.generate(request())
        assert not isinstance(refused.value, EngineLost)
        stand_in.refuse, stand_in.status = {path: 1}, 400
        with pytest.raises(AstraFlowError, match=r"vLLM refused a request.*400"):
            await engine.generate(request())
        assert len((await engine.generate(request())).tokens) == 3
        stand_in.healthy = False
        for call in (engine.generate(request()), engine.health(), engine.resume()):
            with pytest.raises(EngineLost, match="it was switched off"):
                await call

    with_engine(scenario, tmp_path, model)


def test_a_server_that_samples_nothing_is_given_up(tmp_path: Path, model: Path) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        runs = await underway(engine, stand_in, request("runs"))
        with pytest.raises(EngineLost, match=r"sampled nothing for .* s with 1 requests"):
            await runs
        assert stand_in.killed == 1

    with_engine(scenario, tmp_path, model, stall_deadline_s=0.2)


def test_a_paused_server_may_sample_nothing(tmp_path: Path, model: Path) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        runs = await underway(engine, stand_in, request("runs"))
        await engine.pause("keep")
        await asyncio.sleep(0.6)
        assert not runs.done() and stand_in.killed == 0
        await engine.abort(["runs"])
        assert (await runs).finish_reason == "abort"

    with_engine(scenario, tmp_path, model, stall_deadline_s=0.2)


def test_a_version_that_was_not_proved_is_warned_of(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        assert engine.context_length == 64

    with_engine(scenario, tmp_path, model)
    assert "not tested with this engine" not in caplog.text
    proved = StandIn.__init__

    def newer(self: StandIn, folder: Path) -> None:
        proved(self, folder)
        self.version = "0.99.1"

    monkeypatch.setattr(StandIn, "__init__", newer)
    (tmp_path / "stand-in").unlink(missing_ok=True)
    with_engine(scenario, tmp_path, model)
    assert "vLLM 0.99.1 is not tested" in caplog.text
    assert "it has no /abort_requests, /collective_rpc" in caplog.text


def test_sleeping_goes_by_level_and_waking_by_tags(tmp_path: Path, model: Path) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        await engine.pause("wait")
        stand_in.calls.clear()
        await engine.sleep(1)
        await engine.wake()
        assert stand_in.calls == ["/sleep", "/wake_up", "/wake_up", "/pause"]
        stand_in.calls.clear()
        await engine.sleep(2)
        await engine.wake()
        assert stand_in.calls == ["/sleep", "/wake_up", *UPDATE, "/wake_up", "/pause"]
        waits = asyncio.ensure_future(engine.generate(request()))
        await asyncio.sleep(0.05)
        assert not waits.done(), "it fell asleep paused, and wakes so"
        await engine.resume()
        await waits

    with_engine(scenario, tmp_path, model, sleep_mode=True)


def test_after_a_deep_sleep_an_adapter_comes_back_with_its_base(
    tmp_path: Path, model: Path
) -> None:
    module = "base_model.model.model.layers.0.mlp.down_proj"
    header, specs = lay_out(
        (f"{module}.lora_{side}.weight", "F32", shape)
        for side, shape in (("A", (2, 96)), ("B", (32, 2)))
    )
    adapter = tmp_path / "adapter.safetensors"
    adapter.write_bytes(header + bytes(specs[-1].end - len(header)))
    base = digest_of_model([model / "model.safetensors"])

    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        await engine.pause("wait")
        await engine.load_weights(WeightSource("p", 1, adapter, "", 0, 0.0, "adapter", base))
        await engine.sleep(2)
        stand_in.calls.clear()
        await engine.wake()
        rpc, number = "/collective_rpc", "/update_weight_version"
        assert stand_in.calls == ["/wake_up", *UPDATE, rpc, rpc, number, "/wake_up", "/pause"]
        assert stand_in.bodies[number][-1] == {"new_version": "1"}
        await engine.resume()
        await engine.generate(request())
        sent = stand_in.bodies["/inference/v1/generate"][-1]
        assert sent["model"] == stand_in.bodies["/v1/load_lora_adapter"][0]["lora_name"]

    with_engine(scenario, tmp_path, model, sleep_mode=True, lora_rank=2)


def test_only_an_engine_that_was_started_for_it_can_sleep(tmp_path: Path, model: Path) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        with pytest.raises(UserError, match="sleep_mode = true"):
            await engine.sleep(1)

    with_engine(scenario, tmp_path, model)


def test_each_version_has_a_prefix_cache_of_its_own(tmp_path: Path, model: Path) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        await engine.generate(request())
        await engine.pause("wait")
        await engine.load_weights(source(model))
        late = asyncio.ensure_future(engine.generate(request("late")))
        await asyncio.sleep(0)
        await engine.resume()
        await late
        first, second = (b["cache_salt"] for b in stand_in.bodies["/inference/v1/generate"])
        assert first != second and first.rpartition(".")[0] == second.rpartition(".")[0]
        assert json.dumps(first) and second.endswith(".1")

    with_engine(scenario, tmp_path, model)


def bucket_of(model: Path) -> Bucket:
    """All of the model's tensors in one buffer, as a trainer would announce it."""
    specs, end = [], 0
    for spec in specs_of(model / "model.safetensors"):
        start, end = end, end + spec.end - spec.start
        specs.append(replace(spec, start=start, end=end))
    return Bucket(tuple(specs), "d" * 32)


def test_without_cuda_weights_of_a_trainers_gpu_are_refused(tmp_path: Path, model: Path) -> None:
    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        await engine.pause("keep")
        stand_in.calls.clear()
        for call in (
            engine.join(Rendezvous("127.0.0.1", 1, 1, 2)),
            engine.receive(1, [bucket_of(model)]),
        ):
            with pytest.raises(UserError, match=r"on CUDA only.*a transport that transfers files"):
                await call
        assert not stand_in.calls

    with_engine(scenario, tmp_path, model)


def test_buckets_go_through_the_four_stages_and_a_torn_one_brings_the_file_before_back(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the first CUDA call: the requests to the server, on a machine that seems to have a GPU."""
    monkeypatch.setattr(engine_module, "DRIVER", tmp_path)
    memory = DeviceMemory(b"handle", 9, 0, b"counter", 8, b"event", True)

    async def scenario(engine: VllmEngine, stand_in: StandIn) -> None:
        await engine.join(Rendezvous("10.0.0.1", 4000, 1, 3))
        (_, joined) = stand_in.bodies["/init_weight_transfer_engine"]
        fields = {"address": "10.0.0.1", "port": 4000, "rank_offset": 1, "world_size": 3}
        assert joined == {"init_info": fields}
        with pytest.raises(RuntimeError, match="only while it is paused"):
            await engine.receive(1, [bucket_of(model)])
        await engine.pause("keep")
        half = replace(bucket_of(model), tensors=bucket_of(model).tensors[1:])
        with pytest.raises(WeightsError, match="missing tensor"):
            await engine.receive(1, [half])
        stand_in.refuse = {"/update_weights": 1}
        with pytest.raises(WeightsError, match="version 0 is loaded again"):
            await engine.receive(1, [bucket_of(model)])
        stand_in.calls.clear()
        await engine.receive(2, [replace(bucket_of(model), memory=memory)])
        assert stand_in.calls == UPDATE and (await engine.health())["version"] == 2
        told = stand_in.bodies["/update_weights"][-1]["update_info"]
        assert told["digest"] == "d" * 32 and told["memory"]["handle"] == "aGFuZGxl"
        assert ["model.norm.weight", "F32", [32]] in [tensor[:3] for tensor in told["tensors"]]
        stand_in.refuse = {"/update_weights": 1}
        with pytest.raises(EngineLost, match="cannot be loaded again"):
            await engine.load_weights(source(model, 3))

    with_engine(scenario, tmp_path, model)
