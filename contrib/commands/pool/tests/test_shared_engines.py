"""Which engines are shared, and of which model: a run may have written anything."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_pool.shared_engines import SharedEngines, digest_of_folder, shareable
from astraflow_core.errors import RunFailed
from astraflow_runtime.raas.shared_engine import SharedEngineProcess

MOST = 1 << 20


def config(model: Path | str = "/m", engine: Any = None, **policy: Any) -> dict[str, Any]:
    trainer = {"use": "torch", "lora_rank": 2}
    table = {"use": "torch", "threads": 2, "replicas": 1} | (engine or {})
    return {"policies": {"p": {"model": str(model), "trainer": trainer, "engine": table} | policy}}


def model_in(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text("{}")
    (folder / "notes.md").write_text(str(folder))
    return folder


def test_adapters_in_an_installed_engine_are_shared() -> None:
    (found,) = shareable("ada/r", config())
    assert (found.policy, found.use, found.options) == ("p", "torch", {"threads": 2})


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (config(trainer={"use": "torch"}), "no lora_rank"),
        (config(trainer={"use": "torch", "lora_rank": 0}), "no lora_rank"),
        (config(trainer={"use": "torch", "lora_rank": 513}), "larger than 512"),
        (config(engine={"use": "my_module:Engine"}), "not an installed component"),
        (config(engine={"use": "sglang"}), "not an installed component"),
        (config(engine={"python": "env:vllm"}), "'python'"),
        (config(engine={"replicas": 2}), "has replicas"),
        (config(engine={"devices": ["0"]}), "'devices'"),
        (config() | {"run": {"colocated": True}}, "colocated"),
        ({}, ""),
    ],
)  # fmt: skip
def test_other_engines_are_the_runs_own_and_the_log_says_why(
    own: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert shareable("ada/r", own) == []
    assert why in caplog.text


def test_a_model_is_what_its_files_are(tmp_path: Path) -> None:
    one, two = model_in(tmp_path / "one"), model_in(tmp_path / "two")
    (two / "model.safetensors").rename(tmp_path / "blob")
    (two / "model.safetensors").symlink_to(tmp_path / "blob")  # as caches have them
    other = model_in(tmp_path / "other", b"Weights")
    assert digest_of_folder(one, MOST) == digest_of_folder(two, MOST, tmp_path / "copy")
    assert digest_of_folder(one, MOST) == digest_of_folder(tmp_path / "copy", MOST)
    assert digest_of_folder(one, MOST) != digest_of_folder(other, MOST)
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["config.json", "model.safetensors"]  # fmt: skip
    assert not (tmp_path / "copy" / "model.safetensors").is_symlink()


def test_code_pipes_and_what_has_no_room_are_no_model(tmp_path: Path) -> None:
    coded, piped = model_in(tmp_path / "coded"), model_in(tmp_path / "piped")
    (coded / "modeling.py").write_text("")
    os.mkfifo(piped / "tokenizer.json")
    with pytest.raises(ValueError, match=r"has code: modeling\.py"):
        digest_of_folder(coded, MOST)
    with pytest.raises(ValueError, match="not a regular file"):
        digest_of_folder(piped, MOST)
    large = model_in(tmp_path / "large")
    with pytest.raises(OSError, match="no disk space"):
        digest_of_folder(large, 3, tmp_path / "copy")


class Started:
    """In the place of processes: none is started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.models, self.stopped, self.error = list[Path](), 0, ""
        self.most_adapters = 64
        started = self

        async def start(process: SharedEngineProcess, environment: Any, deadline_s: float) -> None:
            started.models.append(Path(process._spec.model))
            process.most_adapters = started.most_adapters
            if started.error:
                raise RunFailed(started.error)

        async def ended(process: SharedEngineProcess) -> int:
            return int(await asyncio.get_running_loop().create_future())

        async def stop(process: SharedEngineProcess) -> None:
            started.stopped += 1

        for name, replaced in (("start", start), ("ended", ended), ("stop", stop)):
            monkeypatch.setattr(SharedEngineProcess, name, replaced)


async def in_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(call)


def test_runs_of_one_model_and_engine_share_a_copy_until_the_last_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path / "cache"))
    started = Started(monkeypatch)
    one, two = model_in(tmp_path / "one"), model_in(tmp_path / "two")
    other = model_in(tmp_path / "other", b"Weights")

    async def scenario() -> None:
        engines = SharedEngines(8, 2, {}, in_thread)
        told = await asyncio.gather(
            engines.attach("a", "ada/r", config(one)), engines.attach("b", "bob/r", config(two))
        )
        assert len(started.models) == 1 and one not in started.models
        (one / "model.safetensors").write_bytes(b"changed")  # what serves is a copy
        assert (started.models[0] / "model.safetensors").read_bytes() == b"weights"
        assert told[0] != told[1] and all(told)
        await engines.attach("c", "ada/s", config(other))
        await engines.attach("d", "ada/t", config(two, engine={"threads": 3}))
        assert len(started.models) == 3
        await engines.release("a")
        assert started.stopped == 0
        await engines.release("b")
        assert started.stopped == 1 and not started.models[0].exists()
        await engines.close()
        assert started.stopped == 3

    asyncio.run(scenario())


def test_each_slot_has_its_share_of_the_adapters_until_its_raas_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path / "cache"))
    Started(monkeypatch).most_adapters = 6
    model = model_in(tmp_path / "m")
    policy = config(model)["policies"]["p"]
    greedy = {"policies": {f"p{n}": policy for n in range(8)}}

    def given(told: dict[str, str]) -> dict[str, Any]:
        return dict(json.loads(told["ASTRAFLOW_SHARED_ENGINES"]))

    async def scenario() -> None:
        engines = SharedEngines(8, 2, {}, in_thread)
        first = given(await engines.attach("a", "ada/r", greedy))
        assert sorted(first) == ["p0", "p1"] and "p7" in caplog.text
        assert len({each["token"] for each in first.values()}) == 2
        for user in ("b", "c"):
            assert len(given(await engines.attach(user, "ada/s", greedy))) == 2
        assert await engines.attach("d", "bob/r", config(model)) == {}  # an engine of its own
        (shared,) = engines._engines.values()
        assert {each["token"] for each in first.values()} < set(shared.process._tokens)
        await engines.release("a")
        assert not {each["token"] for each in first.values()} & set(shared.process._tokens)
        assert len(given(await engines.attach("d", "bob/r", config(model)))) == 1
        await engines.close()

    asyncio.run(scenario())


def test_a_run_whose_engine_cannot_be_shared_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path / "cache"))
    started = Started(monkeypatch)
    started.error = "serves no adapters with these keys"

    async def scenario() -> None:
        engines = SharedEngines(8, 2, {}, in_thread)
        for wrong in (config(model_in(tmp_path / "m")), config("/none"), {"policies": 3}, {"policies": {"p": 1}}):  # fmt: skip
            assert await engines.attach("a", "ada/r", wrong) == {}
        await engines.close()

    asyncio.run(scenario())
    assert "serves no adapters" in caplog.text and caplog.text.count("not shared") == 4
