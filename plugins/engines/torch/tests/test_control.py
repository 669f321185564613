from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from astraflow_core.component import load_attribute
from astraflow_core.errors import RunFailed, UserError, WeightsError, WrongVersion
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, WeightSource
from astraflow_plugin_torch_engine import manifest
from astraflow_plugin_torch_engine.engine import TorchEngine

Serve = Callable[..., AbstractAsyncContextManager[TorchEngine]]
LONG = Sampling(80, temperature=0, ignore_eos=True)


def reference(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


async def sampled(engine: TorchEngine, tokens: int) -> None:
    """Wait until the engine has sampled so many tokens in all."""
    async with asyncio.timeout(20):
        while (await engine.health())["tokens_generated"] < tokens:
            await asyncio.sleep(0)


def prompt(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def source(folder: Path, version: int) -> WeightSource:
    return WeightSource("p", version, folder / "model.safetensors", "", 0, 0.0)


def launch(
    engine: TorchEngine, *ids: int, name: str = "r", **keys: object
) -> asyncio.Task[GenerateResult]:
    request = GenerateRequest(name, prompt(*ids), LONG, **keys)  # type: ignore[arg-type]
    return asyncio.create_task(engine.generate(request))


def test_keep_swaps_weights_in_flight_and_continues_with_the_old_cache(
    folder: Path, other: Path, serve: Serve
) -> None:
    starts = [(7, 3, 9), (5,), (11, 12, 13, 14, 15)]

    async def main() -> list[GenerateResult]:
        async with serve(folder) as engine:
            tasks = [launch(engine, *ids) for ids in starts]
            await sampled(engine, 30)
            await engine.pause("keep")
            frozen = await engine.health()
            late = launch(engine, 8)
            await asyncio.sleep(0.05)
            await engine.load_weights(source(other, 1))
            health = await engine.health()
            assert health["tokens_generated"] == frozen["tokens_generated"]
            assert (health["running"], health["waiting"], health["version"]) == (3, 1, 1)
            await engine.resume()
            assert set((await late).versions.tolist()) == {1}
            return [await task for task in tasks]

    old, new = reference(folder), reference(other)
    for ids, result in zip(starts, asyncio.run(main()), strict=True):
        swap = int((result.versions == 0).sum())
        assert 0 < swap < 80
        assert result.versions.tolist() == [0] * swap + [1] * (80 - swap)
        # The same by hand: old weights, and from the swap on new weights over the old keys and values.
        cache, pending, tokens, logprobs = None, torch.tensor([list(ids)]), [], []
        for number in range(80):
            with torch.no_grad():
                model = old if number < swap else new
                out = model(pending, past_key_values=cache, use_cache=True)
            cache, last = out.past_key_values, out.logits[0, -1].log_softmax(-1)
            tokens.append(int(last.argmax()))
            logprobs.append(float(last.max()))
            pending = last.argmax()[None, None]
        assert result.tokens.tolist() == tokens
        np.testing.assert_allclose(result.logprobs, logprobs, atol=1e-5)


def test_wait_drains_what_runs_and_holds_back_what_comes(folder: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            running = launch(engine, 5)
            await sampled(engine, 5)
            pause = asyncio.create_task(engine.pause("wait"))
            late = launch(engine, 6)
            await pause
            assert running.done()
            assert len(running.result().tokens) == 80
            await asyncio.sleep(0.05)
            assert not late.done()
            assert (await engine.health())["running"] == 0
            await engine.pause("keep")
            await engine.resume()
            assert (await late).finish_reason == "length"

    asyncio.run(main())


def test_abort_mode_returns_what_there_is(folder: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            whole = await launch(engine, 5)
            running = launch(engine, 5)
            await sampled(engine, 90)
            await engine.pause("keep")
            await engine.pause("abort")
            partial = await running
            assert partial.finish_reason == "abort"
            count = len(partial.tokens)
            assert 0 < count < 80
            assert partial.tokens.tolist() == whole.tokens[:count].tolist()
            assert len(partial.logprobs) == len(partial.versions) == count
            await engine.resume()
            assert (await launch(engine, 5)).tokens.tolist() == whole.tokens.tolist()

    asyncio.run(main())


def test_abort_ends_the_named_requests_only(folder: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(folder, max_batch=3) as engine:
            expected = [(await launch(engine, 5 + i)).tokens.tolist() for i in range(3)]
            tasks = [launch(engine, 5 + i, name=str(i)) for i in range(4)]
            await sampled(engine, 3 * 80 + 9)
            await engine.abort(["0", "3", "unknown"])
            results = [await task for task in tasks]
            assert [r.finish_reason for r in results] == ["abort", "length", "length", "abort"]
            assert len(results[3].tokens) == 0  # it was still waiting for a free row
            assert [r.tokens.tolist() for r in results[1:3]] == expected[1:]

    asyncio.run(main())


def test_lower_priority_numbers_are_served_first(folder: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(folder, max_batch=1) as engine:
            await engine.pause("keep")
            order: list[str] = []
            tasks = []
            for name, priority in [("a", 5), ("b", 1), ("c", 5), ("d", 0)]:
                task = launch(engine, 5, name=name, priority=priority)
                task.add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]
                tasks.append(task)
            await asyncio.sleep(0)
            await engine.resume()
            await asyncio.gather(*tasks)
            assert order == ["d", "b", "a", "c"]

    asyncio.run(main())


def test_pinned_requests_get_their_version_or_an_error(
    folder: Path, other: Path, serve: Serve
) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            assert set((await launch(engine, 5, pinned_version=0)).versions.tolist()) == {0}
            with pytest.raises(WrongVersion, match=r"pinned to version 3.*serves version 0"):
                await launch(engine, 5, pinned_version=3)
            running = launch(engine, 5, pinned_version=0)
            free = launch(engine, 5)
            await sampled(engine, 90)
            await engine.pause("keep")
            early = launch(engine, 6, pinned_version=1)
            await engine.load_weights(source(other, 1))
            await engine.resume()
            with pytest.raises(WrongVersion, match="pinned to version 0"):
                await running
            assert len((await free).tokens) == 80
            assert set((await early).versions.tolist()) == {1}

    asyncio.run(main())


def bad_files(folder: Path, tmp: Path) -> dict[str, Path]:
    good = load_file(folder / "model.safetensors")
    norm = "model.norm.weight"
    variants = {
        "missing tensor 'model.norm.weight'": {k: v for k, v in good.items() if k != norm},
        r"has shape \(31,\), expected \(32,\)": good | {norm: good[norm][:31].clone()},
        "unknown tensor 'extra'": good | {"extra": torch.zeros(1)},
        "is I32, expected one of": good | {norm: good[norm].int()},
    }
    paths = {}
    for number, (message, tensors) in enumerate(variants.items()):
        # What fits is changed, so that a swap that began too early would show.
        changed = {name: tensor * 2 for name, tensor in tensors.items()}
        paths[message] = tmp / f"{number}.safetensors"
        save_file(changed, paths[message])
    paths["cannot read"] = tmp / "torn.safetensors"
    paths["cannot read"].write_bytes((folder / "model.safetensors").read_bytes()[:-8])
    return paths


def test_weights_that_do_not_fit_are_refused_and_the_old_version_serves_on(
    folder: Path, tmp_path: Path, serve: Serve
) -> None:
    async def main() -> None:
        async with serve(folder) as engine:
            before = await launch(engine, 5)
            for message, path in bad_files(folder, tmp_path).items():
                await engine.pause("keep")
                with pytest.raises(WeightsError, match=message):
                    await engine.load_weights(WeightSource("p", 1, path, "", 0, 0.0))
                await engine.resume()
                assert (await engine.health())["version"] == 0
                after = await launch(engine, 5)
                assert after.tokens.tolist() == before.tokens.tolist()
                assert after.logprobs.tolist() == before.logprobs.tolist()

    asyncio.run(main())


def test_bfloat16_weights_are_cast(folder: Path, other: Path, tmp_path: Path, serve: Serve) -> None:
    halved = {k: v.bfloat16() for k, v in load_file(other / "model.safetensors").items()}
    save_file(halved, tmp_path / "half.safetensors")
    model = reference(other)
    model.load_state_dict({name: tensor.float() for name, tensor in halved.items()}, strict=False)
    ids = prompt(*range(2, 30))
    with torch.no_grad():
        logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].log_softmax(-1)

    async def main() -> np.ndarray:
        async with serve(folder) as engine:
            await engine.load_weights(
                WeightSource("p", 1, tmp_path / "half.safetensors", "", 0, 0.0)
            )
            return await engine.score(ids)

    expected = logits[np.arange(27), ids[1:]].numpy()
    np.testing.assert_allclose(asyncio.run(main())[1:], expected, atol=1e-5)


def test_weights_that_are_not_finite_fail_requests_until_good_ones_come(
    folder: Path, tmp_path: Path, serve: Serve
) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.norm.weight": torch.full((32,), torch.nan)}, tmp_path / "nan.st")

    async def main() -> None:
        async with serve(folder) as engine:
            before = await launch(engine, 5)
            await engine.load_weights(WeightSource("p", 1, tmp_path / "nan.st", "", 0, 0.0))
            with pytest.raises(RunFailed, match="version 1 are not finite"):
                await launch(engine, 5)
            await engine.load_weights(source(folder, 2))
            assert (await launch(engine, 5)).tokens.tolist() == before.tokens.tolist()

    asyncio.run(main())


def test_close_ends_running_and_waiting_requests(folder: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(folder, max_batch=1) as engine:
            await engine.pause("keep")
            frozen = launch(engine, 5)
            await engine.resume()
            await sampled(engine, 3)
            waiting = launch(engine, 6)
            await asyncio.sleep(0)
        assert (await frozen).finish_reason == "abort"
        assert len((await frozen).tokens) > 0
        assert (await waiting).finish_reason == "abort"
        with pytest.raises(RuntimeError, match="closed"):
            await engine.generate(GenerateRequest("r", prompt(5), LONG))

    asyncio.run(main())


def test_a_folder_without_a_model_is_the_users_mistake(tmp_path: Path, serve: Serve) -> None:
    async def main() -> None:
        async with serve(tmp_path):
            raise AssertionError

    with pytest.raises(UserError, match="cannot load"):
        asyncio.run(main())


def test_the_manifest_names_what_exists() -> None:
    (component,) = manifest.astraflow_engines()
    assert component.name == "torch"
    assert load_attribute(component.target) is TorchEngine
    assert component.config is not None
    assert load_attribute(component.config)().max_batch == 256
