"""A real vLLM server (CPU build): the engine suite by both ways of an update, and what only vLLM claims."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from safetensors.numpy import load_file, save_file

from astraflow_core.errors import WeightsError
from astraflow_core.types import Sampling, WeightSource
from astraflow_plugin_vllm.server import VllmServer
from astraflow_serving.model_folder import ModelFolder
from astraflow_testing.conformance.engine import EngineConformance, Subject, installed

pytestmark = [pytest.mark.backend, pytest.mark.timeout(2000)]
WriteModel = Callable[..., Path]


def source(file: Path, version: int) -> WeightSource:
    return WeightSource("solver", version, file, "", 0, 0.0)


class OnVllm:
    """The engine, and a model that vLLM's CPU attention has kernels for."""

    keys: ClassVar[dict[str, Any]] = {}
    expected_failures: ClassVar = {
        "test_sleep_and_wake_restore_the_engine": "vLLM sleeps on CUDA and ROCm only"
    }
    deadline_s = 120.0  # the first requests of a server take long on a busy machine

    @pytest.fixture
    def component(self, server: VllmServer) -> Subject:
        found = installed("engine", "vllm", {"url": server.url, "max_batch": 64, **self.keys})
        # This server was not started for adapters (`test_adapters.py`), nor for images (`test_image_agreement.py`), nor on
        # a GPU (`test_gpu.py`).
        elsewhere = {"adapters", "images", "lora", "weights.collective", "weights.ipc"}
        return replace(found, capabilities=found.capabilities - elsewhere)

    @pytest.fixture
    def model(self, tmp_path: Path, write_model: WriteModel) -> Path:
        return write_model(tmp_path / "model")

    @pytest.fixture
    def other(self, tmp_path: Path, write_model: WriteModel) -> Path:
        return write_model(tmp_path / "other", seed=1) / "model.safetensors"

    @pytest.mark.parametrize("flaw", ["a layer too many", "half of a fused weight"])
    def test_a_version_that_vllm_refuses_half_way_is_replaced_by_the_one_before(
        self,
        run: Any,
        examiner: Any,
        other: Path,
        tmp_path: Path,
        write_model: WriteModel,
        monkeypatch: pytest.MonkeyPatch,
        flaw: str,
    ) -> None:
        flawed = write_model(tmp_path / "flawed", layers=3) / "model.safetensors"
        if flaw == "half of a fused weight":
            # Keys and queries are loaded when the values turn out not to fit beside them.
            tensors = dict(load_file(other))
            name = "model.layers.0.self_attn.v_proj.weight"
            save_file({**tensors, name: tensors[name][:, 1:].copy()}, flawed)

        async def scenario(served: Any) -> None:
            check, sent = examiner(served), await served.underway()
            await served.engine.pause("keep")
            await served.engine.load_weights(source(other, 1))
            with monkeypatch.context() as patch:  # what we would have noticed ourselves
                patch.setattr(ModelFolder, "check", lambda self, files: None)
                with pytest.raises(WeightsError, match="version 1 is loaded again"):
                    await served.engine.load_weights(source(flawed, 2))
            await served.engine.resume()
            request, result = await served.generate(Sampling(8, ignore_eos=True))
            assert set(result.versions.tolist()) == {1}
            check.examine(request, result)
            await served.engine.abort([one.request.id for one in sent])
            for one in sent:
                check.examine(one.request, await one.task)

        run(scenario)


class TestVllmReloading(OnVllm, EngineConformance):
    keys: ClassVar = {"update": "reload"}


class TestVllm(OnVllm, EngineConformance):
    keys: ClassVar = {"chunk_mb": 1}

    def test_fifty_swaps_under_load_lose_nothing_and_mix_nothing_up(
        self, run: Any, examiner: Any, model: Path, other: Path
    ) -> None:
        swaps, callers = 50, 32
        files = {v: other if v % 2 else model / "model.safetensors" for v in range(swaps + 1)}

        async def scenario(served: Any) -> None:
            done, finished = asyncio.Event(), []

            async def call(number: int) -> None:
                sampling = Sampling(40 + number, ignore_eos=True)
                while not done.is_set():
                    finished.append(await served.generate(sampling, (5, 9, 3, 2 + number % 25)))

            calls = [asyncio.ensure_future(call(number)) for number in range(callers)]
            for version in range(1, swaps + 1):
                before = (await served.engine.health())["tokens_generated"]
                await served.generated(before + 2 * callers)
                await served.engine.pause("keep")
                await served.engine.load_weights(source(files[version], version))
                await served.engine.resume()
            done.set()
            await asyncio.gather(*calls)
            check = replace(examiner(served), files=files)
            for request, result in finished:
                assert len(result.tokens) == request.sampling.max_tokens
                assert result.finish_reason == "length"
                check.examine(request, result)
            mixed = [result for _, result in finished if len(set(result.versions.tolist())) > 1]
            assert len(mixed) > swaps, "too few requests were in flight during a swap"
            seen = {int(v) for _, result in finished for v in result.versions}
            assert seen == set(range(swaps + 1))

        run(scenario)

    def test_a_prefix_cached_by_old_weights_is_never_used_with_new_ones(
        self, run: Any, examiner: Any, other: Path
    ) -> None:
        shared = tuple(2 + i * i % 25 for i in range(600))  # several blocks of the cache

        async def scenario(served: Any) -> None:
            check = examiner(served)
            sampling = Sampling(8, ignore_eos=True)
            for _ in range(2):
                check.examine(*await served.generate(sampling, shared))
            # Whoever runs holds blocks, so vLLM cannot reset its cache.
            kept = served.launch(Sampling(1000, ignore_eos=True), shared)
            await served.generated(20)
            await served.engine.pause("keep")
            await served.engine.load_weights(source(other, 1))
            await served.engine.resume()
            request, result = await served.generate(sampling, shared)
            assert set(result.versions.tolist()) == {1}
            check.examine(request, result)
            await served.engine.abort([kept.request.id])
            check.examine(kept.request, await kept.task)

        run(scenario)

    def test_an_id_outside_the_vocabulary_is_refused_here_for_it_would_kill_the_server(
        self, run: Any
    ) -> None:
        async def scenario(served: Any) -> None:
            for prompt in ((5, 27), (-1, 5)):
                with pytest.raises(ValueError, match="outside"):
                    await served.generate(Sampling(2), prompt)

        run(scenario)
