"""In one process: checkpoints that are refused or of several replicas, gradients that are not finite, and
memory that does not suffice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron_cases import NO_CUDA, Course, as_of_two_replicas, write_model

from astraflow_core.errors import NonFiniteLoss, RunFailed, UserError
from astraflow_core.types import Loss, LossInputs
from astraflow_torch_weights.fake_cuda import FakeCuda

pytestmark = [pytest.mark.backend, NO_CUDA]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    """One step in, its checkpoint in ``folder/saved``."""
    folder = tmp_path_factory.mktemp("course")
    course = Course("megatron", {}, write_model(folder / "model", "qwen3"), folder)
    course.step(course.sampled(0), 0)
    (folder / "saved").mkdir()
    course.trainer.save(folder / "saved")
    course.trainer.finish_save(wait=True)
    yield course
    course.trainer.close()


@pytest.fixture
def saved(course: Course, tmp_path: Path) -> Path:
    """A copy of the checkpoint."""
    return Path(shutil.copytree(course.folder / "saved", tmp_path / "saved"))


def test_the_generator_of_the_device_is_saved_and_restored(course: Course, tmp_path: Path) -> None:
    checkpoints = course.trainer._checkpoints  # type: ignore[attr-defined]
    with FakeCuda() as cuda, torch.no_grad():
        kept = cuda.generator.clone()
        checkpoints.save(tmp_path, 1)
        checkpoints.finish(now=True)
        cuda.generator.zero_()
        checkpoints.load(tmp_path)
        assert cuda.generator.equal(kept)
    with FakeCuda(devices=0) as cuda, torch.no_grad():
        cuda.generator.zero_()
        checkpoints.load(tmp_path)
        assert not cuda.generator.any(), "a machine without CUDA has no use for it"


def truncated(folder: Path) -> None:
    file = folder / "rank00000.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def changed(folder: Path, **architecture: object) -> None:
    facts = json.loads((folder / "trainer.json").read_text())
    facts["architecture"] |= architecture
    (folder / "trainer.json").write_text(json.dumps(facts))


def of_more_ranks(folder: Path) -> None:
    facts = json.loads((folder / "trainer.json").read_text())
    facts["layout"]["data"] = 2
    (folder / "trainer.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(truncated, "not a whole checkpoint of trainer 'megatron'", id="truncated"),
        pytest.param(of_more_ranks, "rank00001", id="a rank's file is missing"),
        pytest.param(
            lambda folder: (folder / "trainer.json").unlink(), "trainer.json", id="no facts"
        ),
        pytest.param(
            lambda folder: changed(folder, layers=3),
            "to another model: layers is 3 there and 2 here",
            id="another model",
        ),
        pytest.param(
            lambda folder: changed(folder, value_head=True),
            "value_head is True there and False here",
            id="a critic",
        ),
    ],
)
def test_what_is_refused(
    damage: Callable[[Path], None], words: str, course: Course, saved: Path
) -> None:
    damage(saved)
    before = course.weights()
    with pytest.raises(UserError, match=words):
        course.trainer.load(saved)
    for name, value in course.weights().items():
        assert np.array_equal(value, before[name])


def test_pieces_of_two_replicas_are_put_together(course: Course, saved: Path) -> None:
    """What two replicas hold of the optimizer is cut anywhere within a parameter."""
    batch = course.sampled(1)
    course.trainer.load(saved)
    norm = course.step(batch, 1)["grad_norm"]
    expected = course.weights()
    as_of_two_replicas(saved)
    course.trainer.load(saved)
    assert course.step(batch, 1)["grad_norm"] == norm
    for name, value in course.weights().items():
        assert np.array_equal(value, expected[name])


def test_pieces_that_leave_a_hole_are_refused(course: Course, saved: Path) -> None:
    as_of_two_replicas(saved, lost=1)
    with pytest.raises(UserError, match="lacks its elements"):
        course.trainer.load(saved)


class Steep:
    """A loss of 0 whose gradient is not finite."""

    needs: frozenset[str] = frozenset()

    def loss(self, inputs: LossInputs) -> Loss:
        return Loss({"steep": (1.0, (inputs.logprobs - inputs.logprobs.detach()).sqrt().sum())})


def test_a_gradient_that_is_not_finite_is_refused(course: Course) -> None:
    batch, before = course.prepared(course.sampled(3)), course.weights()
    with pytest.raises(NonFiniteLoss, match=r"grad_norm is (nan|inf) .loss 0.0.; no step was made"):
        course.trainer.step(batch, Steep(), 1)
    for name, value in course.weights().items():
        assert np.array_equal(value, before[name])
    assert np.isfinite(course.step(batch, 1)["grad_norm"])


def test_memory_that_does_not_suffice_is_advised_about(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hungry(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    batch = course.prepared(course.sampled(2))
    monkeypatch.setattr(course.trainer._optimizer.model.module.decoder, "forward", hungry)
    with pytest.raises(RunFailed, match="set micro_batch_tokens = 45 "):
        course.trainer.step(batch, course.algorithm, 1)
    with pytest.raises(RunFailed, match="set micro_batch_tokens = 45 "):
        course.trainer.logprobs(batch, "current")
