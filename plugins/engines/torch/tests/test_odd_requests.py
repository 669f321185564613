"""Requests that cannot be served, and a decoding thread that fails: the effects on other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from astraflow_core.errors import EngineLost, WeightsError
from astraflow_core.types import GenerateRequest, Sampling, WeightSource
from astraflow_plugin_torch_engine.batch import DecodingBatch, Job
from astraflow_plugin_torch_engine.engine import TorchEngine
from astraflow_plugin_torch_engine.loop import DecodeLoop
from astraflow_serving.tokens import first_stop
from astraflow_wire.model_files.model_digest import digest_of_model

Serve = Callable[..., AbstractAsyncContextManager[TorchEngine]]
PROMPT = np.array([5, 9, 3], np.int32)


def asked(name: str, tokens: int = 60, **keys: Any) -> GenerateRequest:
    return GenerateRequest(
        name, PROMPT, Sampling(tokens, **{"temperature": 0, "ignore_eos": True, **keys})
    )


async def sampled(engine: TorchEngine, tokens: int) -> None:
    async with asyncio.timeout(20):
        while (await engine.health())["tokens_generated"] < tokens:
            await asyncio.sleep(0)


ODD: list[dict[str, Any]] = [
    {"stop_token_ids": (2**40,)},
    {"stop_token_ids": (2**70,)},
    {"stop_token_ids": (-1,)},
    {"stop_token_ids": (3,) * 1_000_000},
    {"stop_sequences": ((3,) * 1_200_000,)},
    {"stop_sequences": ((3, 32),)},
    {"top_k": 2**63},
    {"temperature": float("nan")},
]


def test_what_cannot_be_served_fails_alone_and_at_once(folder: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            alone = (await engine.generate(asked("alone"))).tokens.tolist()
            other = asyncio.create_task(engine.generate(asked("other")))
            await sampled(engine, 70)
            for keys in ODD:
                with pytest.raises(ValueError, match=f"'odd': {next(iter(keys))}.* expected"):
                    await engine.generate(asked("odd", **keys))
            assert (await other).tokens.tolist() == alone
            assert (await engine.generate(asked("late"))).tokens.tolist() == alone

    asyncio.run(main())


@pytest.mark.parametrize("method", ["read", "add"])
def test_what_fails_while_it_is_added_fails_alone(
    method: str, folder: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(DecodingBatch, method)

    def failing(self: DecodingBatch, given: Job | Sequence[Job]) -> None:
        if any(job.request.id == "odd" for job in ([given] if isinstance(given, Job) else given)):
            raise OverflowError("as the test wants it")
        real(self, given)

    monkeypatch.setattr(DecodingBatch, method, failing)

    async def main() -> None:
        async with serve(folder) as engine:
            alone = (await engine.generate(asked("alone"))).tokens.tolist()
            other = asyncio.create_task(engine.generate(asked("other")))
            await sampled(engine, 70)
            with pytest.raises(OverflowError, match="as the test wants it"):
                await engine.generate(asked("odd"))
            assert (await other).tokens.tolist() == alone
            health = await engine.health()
            assert (health["running"], health["waiting"]) == (0, 0)

    asyncio.run(main())


def test_no_call_is_unanswered_once_the_thread_has_failed(
    folder: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: DecodeLoop) -> bool:
        raise MemoryError("as the test wants it")

    async def main() -> None:
        async with asyncio.timeout(20), serve(folder, max_batch=1) as engine:
            calls: list[asyncio.Task[Any]] = [
                asyncio.create_task(engine.generate(asked(name))) for name in ("runs", "waits")
            ]
            await sampled(engine, 3)
            calls.append(asyncio.create_task(engine.pause("wait")))
            await asyncio.sleep(0)
            monkeypatch.setattr(DecodeLoop, "_step", failing)
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, EngineLost) and "as the test wants it" in str(outcome)
            source = WeightSource("p", 1, folder / "model.safetensors", "", 0, 0.0)
            for later in (
                engine.generate(asked("later")),
                engine.score(PROMPT),
                engine.load_weights(source),
                engine.resume(),
                engine.abort(["runs"]),
                engine.health(),
            ):
                with pytest.raises(EngineLost, match="its decoding thread failed: MemoryError"):
                    await later

    asyncio.run(main())


def job(sampling: Sampling, number: int) -> Job:
    future: Any = None  # its caller is gone
    return Job(GenerateRequest("r", PROMPT, sampling), future, number)


def stops_of(rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(rng.integers(0, 3, rng.integers(1, 5)).tolist()) for _ in range(rng.integers(4))
    )


def test_rows_end_where_their_own_stops_are_and_leave_no_room_behind() -> None:
    """Compared with a search in the text of each row alone; rows come and go and are moved."""
    rng, most = np.random.default_rng(0), 12
    batch = DecodingBatch(6, (), 0)
    texts: dict[int, list[int]] = {}
    ended_early = 0
    for number in range(200):
        if batch.size < 6:
            stops = stops_of(rng)
            single = tuple(stop[0] for stop in stops if len(stop) == 1)
            new = job(Sampling(most, stop_token_ids=single, stop_sequences=stops), number)
            batch.read(new)
            batch.add([new])
            texts[number] = []
        tokens = rng.integers(0, 3, batch.size)
        logprobs = np.zeros(batch.size, np.float32)
        ended, stopped = batch.record(np.arange(batch.size), tokens, logprobs, 0)
        expected = {}
        for row, (running, token) in enumerate(zip(batch.jobs, tokens.tolist(), strict=True)):
            text = texts[running.number]
            text.append(token)
            stop = first_stop(text, len(text) - 1, running.request.sampling.stop_sequences)
            if stop is not None or len(text) == most:
                expected[row] = stop is not None
        assert dict(zip(ended.tolist(), stopped.tolist(), strict=True)) == expected
        ended_early += sum(expected.values())
        batch.remove(ended)
    assert ended_early > 20
    before = DecodingBatch(6, (), 0)._last.nbytes
    odd = job(Sampling(4, stop_token_ids=(2,) * 64, stop_sequences=((1,) * 256,)), 0)
    batch.remove(np.arange(batch.size))
    batch.read(odd)
    batch.add([odd])
    assert batch._last.nbytes == 65 * before
    batch.remove(np.array([0]))
    assert batch._last.nbytes == before and not batch._stops


def adapter(folder: Path, target: Path, version: int, changed: str, rank: int) -> WeightSource:
    weights, generator = load_file(folder / "model.safetensors"), torch.Generator()
    generator.manual_seed(version)
    factors = {}
    for name, weight in weights.items():
        if name.endswith(changed):
            module = f"base_model.model.{name.removesuffix('.weight')}"
            factors[f"{module}.lora_A.weight"] = torch.randn(
                rank, weight.shape[1], generator=generator
            )
            factors[f"{module}.lora_B.weight"] = torch.full((weight.shape[0], rank), 0.1)
    path = target / f"{version}.safetensors"
    save_file(factors, path)
    base = digest_of_model([folder / "model.safetensors"])
    return WeightSource("p", version, path, "", 0, 0.0, "adapter", base)


def test_an_adapter_takes_room_in_its_own_modules_only(
    folder: Path, tmp_path: Path, serve: Serve
) -> None:
    changed = {
        "wide": ("o_proj.weight", 32),
        "other": ("q_proj.weight", 2),
        "both": ("proj.weight", 3),
    }

    async def main() -> None:
        async with serve(folder) as engine:
            alone, room = {}, 0
            for version, (name, (matrices, rank)) in enumerate(changed.items(), 1):
                source = adapter(folder, tmp_path, version, matrices, rank)
                await engine.load_adapter(name, source)
                room += sum(factor.numel() for factor in load_file(source.path).values())
            names = [*changed, ""]
            for name in names:
                request = GenerateRequest(name, PROMPT, asked("").sampling, adapter=name)
                alone[name] = (await engine.generate(request)).tokens.tolist()
            together = await asyncio.gather(
                *(
                    engine.generate(GenerateRequest(name, PROMPT, asked("").sampling, adapter=name))
                    for name in names
                )
            )
            assert {result.id: result.tokens.tolist() for result in together} == alone
            stacks = engine._loop.named._stacks.values()
            assert sum(a.numel() + b.numel() for _, a, b in stacks) == room

    asyncio.run(main())


@pytest.mark.parametrize("live", [0, 2])
def test_no_rank_is_greater_than_a_matrix_can_have(
    live: int, folder: Path, tmp_path: Path, serve: Serve
) -> None:
    """Keys have 16 rows here; the matrices of queries are square, 32 by 32."""

    async def main() -> None:
        async with serve(folder, live_adapters=live) as engine:
            for changed, rank, most in (("k_proj.weight", 17, 16), ("q_proj.weight", 33, 32)):
                source = adapter(folder, tmp_path, 1, changed, rank)
                for load in (engine.load_weights(source), engine.load_adapter("a", source)):
                    with pytest.raises(WeightsError, match=f"rank {rank}; expected 1 to {most},"):
                        await load
            await engine.load_adapter("a", adapter(folder, tmp_path, 1, "k_proj.weight", 16))

    asyncio.run(main())
