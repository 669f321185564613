from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from fsdp_cases import FSDP_RANKS, STEPS, make_batch, same_metrics, same_weights
from safetensors.numpy import load_file
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from astraflow_core.errors import AstraFlowError, RunFailed, UserError
from astraflow_core.types import ExportedTensor
from astraflow_plugin_fsdp.sharding import ShardedLM
from astraflow_runtime.trainer.updates.update import update
from astraflow_testing.conformance._models.adopt_tests import adopts_adapters
from astraflow_testing.conformance._models.trainer_rig import (
    TrainerRig,
    exported,
    ragged_batch,
    train,
)
from astraflow_testing.conformance.subject import context
from astraflow_testing.conformance.trainer import Subject, TrainerConformance, installed

KEYS: dict[str, Any] = {
    "device": "cpu",
    "publish_dtype": "float32",
    "lr": 1e-2,
    "schedule": "cosine",
    "warmup_steps": 2,
}
CUTS: tuple[dict[str, Any], ...] = (
    {"micro_batch_tokens": 9},
    {"micro_batch_tokens": 9, "reduce": "each"},
    {"micro_batch_tokens": 40, "layout": "packed"},
    {"micro_batch_tokens": 60, "layout": "tree"},
    {"micro_batch_tokens": 30, "gradient_checkpointing": True},
)


def floats(tensor: ExportedTensor) -> Any:
    return np.frombuffer(bytes(tensor.data), np.float32).reshape(tensor.shape)


@pytest.mark.slow
class TestFsdpTrainer(TrainerConformance):
    own_tests: ClassVar = {
        "multi_rank": "test_two_ranks_make_the_step_of_one",
        "reshard": "test_two_ranks_read_the_checkpoint_of_one",
        "lora": "test_adapters",
    }

    @pytest.fixture
    def component(self) -> Subject:
        return installed("trainer", "fsdp", KEYS, *({**KEYS, **cut} for cut in CUTS))

    @FSDP_RANKS
    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_two_ranks_make_the_step_of_one(self, request: pytest.FixtureRequest) -> None:
        # Fixtures of this class are set up by light tests too.
        one, two = request.getfixturevalue("one"), request.getfixturevalue("two")
        for found in two:
            same_metrics(found["qwen3"]["metrics"], one["qwen3"]["metrics"])
            same_weights(found["qwen3"]["weights"], one["qwen3"]["weights"], STEPS)

    @FSDP_RANKS
    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_two_ranks_read_the_checkpoint_of_one(self, request: pytest.FixtureRequest) -> None:
        # Fixtures of this class are set up by light tests too.
        one, two = request.getfixturevalue("one"), request.getfixturevalue("two")
        for found in two:
            assert found["resharded"].keys() == one["saved"].keys()
            for name, value in one["saved"].items():
                assert found["resharded"][name].tobytes() == value.tobytes()

    def test_adapters(self, model: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        rig = TrainerRig(installed("trainer", "fsdp", {**KEYS, "lora_rank": 2}), model, tmp_path)
        request.addfinalizer(lambda: [trainer.close() for trainer in rig.built])
        trainer = rig.build(needs=frozenset({"reference"}))
        assert trainer.weights_kind == "adapter"  # type: ignore[attr-defined]
        first = trainer.logprobs(ragged_batch(), "current")
        train(trainer, range(2))
        adapter = exported(trainer)
        assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in adapter)
        assert (trainer.logprobs(ragged_batch(), "reference") == first).all()
        assert np.abs(trainer.logprobs(ragged_batch(), "current") - first).max() > 1e-3

        folder = rig.folder("adapters")
        trainer.save(folder)
        assert trainer.finish_save(wait=True)  # type: ignore[attr-defined]
        held = FileSystemReader(folder).read_metadata().state_dict_metadata
        assert all(".lora_" in name for name in held if name.startswith("weights/"))
        again = rig.build()
        again.load(folder)
        for name, tensor in exported(again).items():
            assert bytes(tensor.data) == bytes(adapter[name].data)
        adopts_adapters(rig)

        trainer.save_model(tmp_path / "left")
        before, after = (load_file(f / "model.safetensors") for f in (model, tmp_path / "left"))
        assert before.keys() == after.keys()
        changed = 0
        for name, weight in before.items():
            module = "base_model.model." + name.removesuffix(".weight")
            if (low := adapter.get(f"{module}.lora_A.weight")) is not None:
                high, low = (floats(m) for m in (adapter[f"{module}.lora_B.weight"], low))
                weight, changed = weight + high.astype(np.float64) @ low, changed + 1
            np.testing.assert_allclose(after[name], weight, atol=1e-6, err_msg=name)
        assert changed == len(adapter) / 2

    @pytest.mark.parametrize(("parts", "passes"), [(1, 1), (2, 3)])
    def test_the_first_loss_computes_proximal_log_probs(
        self,
        parts: int,
        passes: int,
        rig: TrainerRig,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        (factory,) = installed("algorithm", "decoupled_ppo").variants.values()
        algorithm = factory(context("trainer", tmp_path))
        trainer, made, predict = rig.build(needs=algorithm.needs), [], ShardedLM.predict

        def counted(*arguments: Any) -> Any:
            made.append(arguments)
            return predict(*arguments)

        monkeypatch.setattr(ShardedLM, "predict", counted)
        update(ragged_batch(), trainer, algorithm, parts=parts, seed=0, step=0)
        assert len(made) == passes

    def test_training_continues_while_a_checkpoint_is_written(
        self, rig: TrainerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written, write = threading.Event(), FileSystemWriter.write_data

        def later(*arguments: Any) -> Any:
            assert written.wait(30)
            return write(*arguments)

        monkeypatch.setattr(FileSystemWriter, "write_data", later)
        trainer, folder = rig.build(), rig.folder("held-back")
        train(trainer, [0])
        saved = exported(trainer)
        trainer.save(folder)
        assert not trainer.finish_save(wait=False)  # type: ignore[attr-defined]
        train(trainer, [1])
        assert exported(trainer) != saved
        written.set()
        assert trainer.finish_save(wait=True)  # type: ignore[attr-defined]
        again = rig.build()
        again.load(folder)
        assert exported(again) == saved

    def test_a_disk_without_room_is_reported(
        self, rig: TrainerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        trainer, folder = rig.build(), rig.folder("full")
        with monkeypatch.context() as patched:
            patched.setattr(FileSystemWriter, "write_data", full)
            trainer.save(folder)
            with pytest.raises(AstraFlowError, match=os.strerror(errno.ENOSPC)):
                trainer.finish_save(wait=True)  # type: ignore[attr-defined]
        assert trainer.finish_save(wait=True)  # type: ignore[attr-defined]
        train(trainer, [0])
        trainer.save(rig.folder("room"))
        assert trainer.finish_save(wait=True)  # type: ignore[attr-defined]

    def test_what_to_do_without_memory_is_reported(
        self, rig: TrainerRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise torch.OutOfMemoryError("tried to allocate 20 MiB")

        trainer = rig.build(next(label for label in rig.variants if "30" in label))
        monkeypatch.setattr(ShardedLM, "predict", refuse)
        with pytest.raises(RunFailed, match="out of memory: set micro_batch_tokens = 15"):
            trainer.logprobs(ragged_batch(), "current")

    def test_a_row_beyond_the_context_is_refused(self, rig: TrainerRig) -> None:
        with pytest.raises(RunFailed, match=r"trajectory 0, has 129 tokens, .* is 128"):
            rig.build().logprobs(make_batch(0, rows=1, longest=129), "current")

    def test_checkpoints_that_are_none_are_refused(self, rig: TrainerRig) -> None:
        trainer, folder = rig.build(), rig.folder("checkpoint")
        with pytest.raises(UserError, match="not a checkpoint of trainer 'fsdp'"):
            trainer.load(folder)
        train(trainer, [0])
        trainer.save(folder)
        assert trainer.finish_save(wait=True)  # type: ignore[attr-defined]
        (shard,) = folder.glob("*.distcp")
        os.truncate(shard, shard.stat().st_size // 2)
        with pytest.raises(UserError, match="cannot be read whole"):
            trainer.load(folder)
        (folder / "trainer.json").write_text('{"format": 99, "steps": 1, "ranks": 1}')
        with pytest.raises(UserError, match="format 99"):
            trainer.load(folder)
