from __future__ import annotations

import asyncio
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import xxhash
from adapter_cases import TOKENS, adapt, reference
from safetensors.torch import load_file

from astraflow_core.errors import WeightsError
from astraflow_core.types import Bucket, DeviceMemory, Rendezvous, WeightSource
from astraflow_plugin_torch_engine import receiving
from astraflow_serving.model_folder import specs_of
from astraflow_testing.conformance.engine import EngineConformance, Subject, installed
from astraflow_torch_weights.buckets import opened
from astraflow_torch_weights.group import GroupRendezvous


class TestTorchEngine(EngineConformance):
    own_tests: ClassVar[dict[str, str]] = {
        "lora": "test_an_adapter_is_merged_into_its_base",
        "weights.ipc": "test_mapped_memory_is_swapped_in_whole_or_not_at_all",
        "weights.collective": "test_a_broadcast_is_swapped_in_whole_or_not_at_all",
    }

    @pytest.fixture
    def component(self) -> Subject:
        return installed("engine", "torch", {"device": "cpu"})

    def test_an_adapter_is_merged_into_its_base(
        self, serve: Any, write_model: Any, tmp_path: Path
    ) -> None:
        """Exactly, however many came before, and whatever they changed."""
        folder, other = write_model(tmp_path / "a"), write_model(tmp_path / "b", seed=1)
        first, _ = adapt(folder, tmp_path, 1, "")
        second, merged = adapt(folder, tmp_path, 2, "mlp")
        stranger, _ = adapt(other, tmp_path, 3, "")
        on_other, merged_other = adapt(other, tmp_path, 5, "self_attn")

        async def scenario() -> None:
            async with serve(folder) as engine:
                await engine.pause("keep")
                await engine.load_weights(first)
                await engine.load_weights(second)
                await engine.resume()
                np.testing.assert_allclose(
                    await engine.score(TOKENS), reference(folder, merged), atol=2e-5
                )
                await engine.pause("keep")
                with pytest.raises(
                    WeightsError, match=f"base {stranger.base}; {second.base} is loaded"
                ):
                    await engine.load_weights(stranger)
                await engine.resume()
                np.testing.assert_allclose(
                    await engine.score(TOKENS), reference(folder, merged), atol=2e-5
                )
                assert (await engine.health())["version"] == 2
                await engine.pause("keep")
                whole = WeightSource(
                    "p", 4, other / "model.safetensors", stranger.base or "", 0, 0.0
                )
                await engine.load_weights(whole)
                with pytest.raises(WeightsError, match="is loaded"):
                    await engine.load_weights(first)
                await engine.load_weights(on_other)
                await engine.resume()
                expected = reference(other, merged_other)
                np.testing.assert_allclose(await engine.score(TOKENS), expected, atol=2e-5)

        asyncio.run(scenario())

    def test_a_broadcast_is_swapped_in_whole_or_not_at_all(
        self, serve: Any, write_model: Any, tmp_path: Path
    ) -> None:
        folder, other = write_model(tmp_path / "a"), write_model(tmp_path / "b", seed=1)
        buckets, data = packed(other)
        torn = replace(buckets[1], digest="0" * 32)

        def send(meeting: GroupRendezvous) -> None:
            with closing(meeting.lead({1: "engine"}, "gloo")) as group:
                for each in data:
                    group.broadcast(each)
                group.outcomes({1: "engine"})

        async def bring(engine: Any, version: int, given: list[Bucket]) -> None:
            meeting = GroupRendezvous("127.0.0.1", "127.0.0.1", time.monotonic() + 60)
            sending = asyncio.create_task(asyncio.to_thread(send, meeting))
            await engine.join(Rendezvous("127.0.0.1", meeting.port, 1, 2))
            await engine.pause("keep")
            try:
                await engine.receive(version, given)
            finally:
                await engine.resume()
                await sending

        async def scenario() -> None:
            async with serve(folder) as engine:
                assert engine.workers == 1
                before = await engine.score(TOKENS)
                with pytest.raises(WeightsError, match="no broadcast of version 1 was joined"):
                    await engine.receive(1, buckets)
                with pytest.raises(WeightsError, match="version 1 arrived corrupted: bucket 1 has"):
                    await bring(engine, 1, [buckets[0], torn])
                assert (await engine.score(TOKENS) == before).all()
                assert (await engine.health())["version"] == 0
                await bring(engine, 2, buckets)
                assert (await engine.health())["version"] == 2
                after = await engine.score(TOKENS)
                state = load_file(other / "model.safetensors")
                np.testing.assert_allclose(after, reference(other, state), atol=2e-5)

        asyncio.run(scenario())

    def test_mapped_memory_is_swapped_in_whole_or_not_at_all(
        self, serve: Any, write_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With memory of this process in the place of a GPU's; transport ``cuda_ipc`` tests the mapping."""
        folder, other = write_model(tmp_path / "a"), write_model(tmp_path / "b", seed=1)
        buckets, data = packed(other)
        stand_in = {
            bytes([number]): part for number, part in enumerate(data)
        }  # by a handle of one byte

        def map_stand_in(memory: DeviceMemory, size: int, device: torch.device) -> torch.Tensor:
            return stand_in[memory.handle][:size]

        monkeypatch.setattr(receiving, "opened", partial(opened, map_memory=map_stand_in))
        given = [
            replace(
                bucket, memory=DeviceMemory(bytes([number]), bucket.size, 0, b"", 0, b"", False)
            )
            for number, bucket in enumerate(buckets)
        ]

        async def scenario() -> None:
            async with serve(folder) as engine:
                before = await engine.score(TOKENS)
                await engine.pause("keep")
                with pytest.raises(WeightsError, match="version 1 arrived corrupted: bucket 0 has"):
                    await engine.receive(1, [replace(given[0], digest="0" * 32), given[1]])
                assert (await engine.score(TOKENS) == before).all()
                await engine.receive(2, given)
                for part in data:
                    part.zero_()  # the engine has a copy of its own
                await engine.resume()
                state = load_file(other / "model.safetensors")
                after = await engine.score(TOKENS)
                np.testing.assert_allclose(after, reference(other, state), atol=2e-5)

        asyncio.run(scenario())


def packed(folder: Path) -> tuple[list[Bucket], list[torch.Tensor]]:
    """The weights of ``folder`` as two buckets, and their bytes."""
    file = folder / "model.safetensors"
    whole, specs = file.read_bytes(), specs_of(file)
    half = len(specs) // 2
    buckets, data = [], []
    for run in (specs[:half], specs[half:]):
        start = run[0].start
        part = whole[start : run[-1].end]
        moved = tuple(replace(spec, start=spec.start - start, end=spec.end - start) for spec in run)
        buckets.append(Bucket(moved, xxhash.xxh3_128_hexdigest(part)))
        data.append(torch.frombuffer(bytearray(part), dtype=torch.uint8))
    return buckets, data
