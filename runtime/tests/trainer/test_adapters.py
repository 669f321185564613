"""Adapters from a scripted trainer through HTTP, and what is made of the best one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from astraflow_core.errors import UserError, WeightsError
from astraflow_core.types import Announcement, ExportedTensor
from astraflow_runtime.trainer.adapters import base_digest, merge
from astraflow_runtime.trainer.publishing import Versions
from astraflow_serving.adapter import adapter_shape
from astraflow_serving.model_folder import ModelFolder
from astraflow_testing.conformance._models.weights import read_floats
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_weights.fetch.receiver import HttpReceiver
from astraflow_weights.publish.publisher import HttpPublisher

pytestmark = pytest.mark.timeout(60)
MODULE = "model.layers.0.self_attn.q_proj"
A, B = (f"base_model.model.{MODULE}.lora_{side}.weight" for side in "AB")


class Transport:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def publisher(self) -> HttpPublisher:
        return HttpPublisher("solver", "t", host="127.0.0.1", port=0, advertise=None)

    def receiver(self) -> HttpReceiver:
        return HttpReceiver(self.folder, "t", streams=2)


class Dataflow:
    policy = "solver"

    def __init__(self) -> None:
        self.announced: list[Announcement] = []

    def announce(self, announcement: Announcement, probe: Any) -> list[int]:
        self.announced.append(announcement)
        return [told.version for told in self.announced]


class ScriptedTrainer:
    """Its adapter of version n is made from seed n."""

    weights_kind = "adapter"

    def __init__(self) -> None:
        self.version = 0

    def factors(self, version: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng(version)
        return {
            A: random.normal(size=(4, 64)).astype(np.float32),
            B: random.normal(size=(64, 4)).astype(np.float32),
        }

    def export(self) -> Iterator[ExportedTensor]:
        for name, value in self.factors(self.version).items():
            yield ExportedTensor(name, "F32", value.shape, value)
        self.version += 1


def test_every_version_is_an_adapter_with_the_digest_of_its_base(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    transport, dataflow, trainer = Transport(tmp_path / "w"), Dataflow(), ScriptedTrainer()
    with closing(Versions(transport, "http", dataflow, model)) as versions:
        for version in (0, 1):
            versions.publish(trainer, version)
        with closing(transport.receiver()) as receiver:
            for told in dataflow.announced:
                source = receiver.fetch(told, 20)
                assert (source.kind, source.base) == ("adapter", base_digest(model))
                assert adapter_shape(ModelFolder.read(model), source.path).rank == 4
                found, expected = load_file(source.path), trainer.factors(told.version)
                assert {n: v.tobytes() for n, v in found.items()} == {
                    n: v.tobytes() for n, v in expected.items()
                }
        best = tmp_path / "best"
        write_tiny_model(best, seed=9)
        versions.write(1, best, 20)
    expected = load_file(model / "model.safetensors")
    factors = {n: v.astype(np.float64) for n, v in trainer.factors(1).items()}
    expected[f"{MODULE}.weight"] = expected[f"{MODULE}.weight"] + factors[B] @ factors[A]
    found = load_file(best / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_component_that_cannot_take_adapters_ends_the_run_before_a_batch(tmp_path: Path) -> None:
    dataflow = Dataflow()
    reason = "transport 'x' lacks the capability adapter"
    with (
        closing(Versions(Transport(tmp_path), "x", dataflow, tmp_path, lambda: reason)) as versions,
        pytest.raises(UserError, match=f"'solver' trains an adapter, and {reason}"),
    ):
        versions.publish(ScriptedTrainer(), 0)
    assert not dataflow.announced


def test_a_merge_is_rounded_to_the_nearest_bfloat16(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", dtype="BF16")
    factors = ScriptedTrainer().factors(3)
    save_file(factors, tmp_path / "adapter.safetensors")
    merge(model, tmp_path / "adapter.safetensors", tmp_path / "merged.safetensors")
    before = read_floats(model / "model.safetensors")
    after = read_floats(tmp_path / "merged.safetensors")
    exact = before[f"{MODULE}.weight"] + factors[B].astype(np.float64) @ factors[A]
    found = after.pop(f"{MODULE}.weight")
    np.testing.assert_allclose(found, exact, rtol=2**-8, atol=1e-6)
    apart = np.abs(found - exact) / np.maximum(np.abs(exact), 1e-3)
    assert np.quantile(apart, 0.99) <= 2**-8, "half a step of bfloat16, not a whole one"
    for name, value in after.items():
        assert value.tobytes() == before[name].tobytes(), name


def test_a_merge_of_a_tensor_that_the_base_lacks_is_refused(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    names = [name.replace("layers.0", "layers.7") for name in (A, B)]
    save_file(dict(zip(names, ScriptedTrainer().factors(0).values(), strict=True)), tmp_path / "a")
    with pytest.raises(WeightsError, match=r"layers\.7"):
        merge(model, tmp_path / "a", tmp_path / "merged")


def test_versions_of_one_policy_stay_adapters_of_one_rank(tmp_path: Path) -> None:
    with closing(Transport(tmp_path).publisher()) as publisher:
        tensor = ExportedTensor("w", "F32", (2,), np.zeros(2, np.float32))
        first = publisher.publish(0, [tensor], base="b" * 32)
        assert (first.kind, first.base) == ("adapter", "b" * 32)
        with pytest.raises(WeightsError, match="same tensors"):
            publisher.publish(
                1, [replace(tensor, shape=(3,), data=np.zeros(3, np.float32))], base="b"
            )
        whole = publisher.publish(2, [tensor])
        assert (whole.kind, whole.base) == ("full", None)
