"""One rank of the parity tests: steps on given batches; rank 0 leaves what it found in a folder."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))  # for megatron_cases

from megatron_cases import STEPS, Course, make_batch, of_step

from astraflow_core.errors import NonFiniteLoss
from astraflow_core.types import Batch, Ranks
from astraflow_runtime.trainer.updates.update import update

RESUMED_AT = 2


def main(folder: Path) -> None:
    """Everything that one launch is to show, for each case in ``folder``."""
    given = json.loads((folder / "given.json").read_text())
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ranks = Ranks(rank, size, int(os.environ["LOCAL_RANK"]), deadline_s=given["deadline_s"])
    for name, case in given["cases"].items():
        found = Shown(folder / name, case, ranks).found()
        if rank == 0:
            np.savez(folder / name / "found.npz", **found)


class Shown:
    """The steps of one case, and its checkpoints."""

    def __init__(self, folder: Path, case: dict[str, Any], ranks: Ranks) -> None:
        self.folder, self.case, self.ranks = folder, case, ranks
        behaviour = np.load(folder / "behaviour.npz")
        self.batches = [
            replace(
                make_batch(n),
                logprobs=behaviour[str(n)],
                routed_experts=behaviour.get(f"routed/{n}"),
            )
            for n in range(STEPS)
        ]

    @contextmanager
    def course(self, keys: str = "keys") -> Iterator[Course]:
        """A trainer with these keys of the case; ranks part after the last, and meet again."""
        course = Course(
            "megatron",
            self.case[keys],
            self.folder / "model",
            self.folder,
            self.ranks,
            self.case["algorithm"],
        )
        yield course
        course.trainer.close()

    def found(self) -> dict[str, Any]:
        """Of the steps with one layout, resumed, with another layout, and back."""
        with self.course() as course:
            found = self.steps(course)
            with self.course() as resumed:
                found |= self.resumed(resumed, found["norms"])
        with self.course("elsewhere") as elsewhere:
            elsewhere.trainer.load(self.folder / "checkpoint")
            found |= named("read", elsewhere)
            self.save(elsewhere, "resharded")
            found["resharded norms"] = self.last_steps(elsewhere)
            found |= named("elsewhere", elsewhere)
        with self.course() as back:
            back.trainer.load(self.folder / "resharded")
            norms = self.last_steps(back)
            assert norms == found["norms"][RESUMED_AT:], f"{norms} once back, {found['norms']}"
            found |= named("back", back)
        return found

    def steps(self, course: Course) -> dict[str, Any]:
        """All of them, a checkpoint among them, and the model that is left."""
        found: dict[str, Any] = {"norms": [], "losses": []}
        for number, batch in enumerate(self.batches):
            if number == RESUMED_AT:
                self.save(course, "checkpoint")
                found |= named("saved", course)
            found[f"logprobs/{number}"] = course.trainer.logprobs(batch, "current")
            found[f"logprobs/gradients/{number}"] = course.trainer.logit_gradients(batch)
            if (values := course.values(batch)) is not None:
                found[f"values/{number}"] = values
            metrics = course.step(batch, number)
            found |= of_step(course, number)
            found["norms"].append(metrics["grad_norm"])
            found["losses"].append(metrics["loss"])
        found |= named("after", course)
        if course.trainer.weights_kind == "full":
            self.sharded(course)
        self.make("left")
        course.trainer.save_model(self.folder / "left")
        free = replace(self.batches[0], routed_experts=None)
        found["final"] = course.trainer.logprobs(free, "current")
        return found

    def sharded(self, course: Course) -> None:
        """The slices that ranks would publish are what is gathered on rank 0, each element once."""
        mine = [
            (part.name, part.dtype, part.shape, part.start, bytes(part.data))
            for part in course.trainer.export_shards()  # type: ignore[attr-defined]
        ]
        slices: list[Any] = [None] * self.ranks.size
        dist.all_gather_object(slices, mine)
        whole = {t.name: (t.dtype, t.shape, bytes(t.data)) for t in course.trainer.export()}
        if self.ranks.rank:
            return
        for name, (dtype, shape, data) in whole.items():
            parts = sorted(p[1:] for rank in slices for p in rank if p[0] == name and p[4])
            assert {part[:2] for part in parts} == {(dtype, shape)}
            assert b"".join(part[3] for part in parts) == data, name
            width, end = len(data) // math.prod(shape), 0
            for _, _, start, bits in parts:
                assert start == end, f"{name}: {start} after {end}"
                end = start + len(bits) // width
        sizes = [sum(len(part[4]) for part in rank) for rank in slices]
        assert sum(sizes) == sum(len(data) for _, _, data in whole.values())
        # Stages and experts differ in size; no rank has all of them.
        assert max(sizes) < 0.8 * sum(sizes), sizes

    def resumed(self, course: Course, norms: list[float]) -> dict[str, Any]:
        """The last steps again, then one that has to be refused."""
        course.trainer.load(self.folder / "checkpoint")
        again = self.last_steps(course)
        assert again == norms[RESUMED_AT:], f"{again} after a resume, {norms}"
        found = named("twice", course)
        poisoned = course.prepared(self.batches[0])
        assert poisoned.advantages is not None
        poisoned.advantages[np.flatnonzero(poisoned.loss_mask)[5]] = math.nan
        self.refused(course, poisoned)
        found |= named("unchanged", course)
        if "values" not in course.algorithm.needs:
            self.spared(course)
        return found

    def spared(self, course: Course) -> None:
        """Proximal log-probs of the loss's own pass make the same step, with no pass but those of the loss (and with
        adapters, which share their layers with the reference, those of the reference)."""
        trainer, batch = course.trainer, self.batches[RESUMED_AT]
        passes: list[object] = []
        hook = trainer._policy.decoder.register_forward_pre_hook(lambda *_: passes.append(1))
        every = np.ones(len(batch.tokens), np.bool_)
        loss, whole = (len(trainer._cut(batch, wanted)[1]) for wanted in (batch.loss_mask, every))
        reference = whole if trainer.weights_kind == "adapter" else 0
        made: list[tuple[float, dict[str, Any]]] = []
        for spares, expected in ((True, loss), (False, loss + whole)):
            trainer.load(self.folder / "checkpoint")
            trainer.proximal_in_step = spares
            passes.clear()
            metrics = update(batch, trainer, course.algorithm, parts=1, seed=0, step=RESUMED_AT)
            assert len(passes) == expected + reference, f"{len(passes)} passes, spares: {spares}"
            made.append((metrics["grad_norm"], course.weights()))
        hook.remove()
        (norm, weights), (norm_before, weights_before) = made
        np.testing.assert_allclose(norm, norm_before, rtol=1e-5)
        for name, value in weights.items():
            np.testing.assert_allclose(value, weights_before[name], rtol=0, atol=1e-7)

    def refused(self, course: Course, poisoned: Batch) -> None:
        """Every rank has to refuse, or the others would wait for it."""
        try:
            course.trainer.step(poisoned, course.algorithm, 9)
        except NonFiniteLoss:
            return
        raise AssertionError(f"rank {self.ranks.rank} stepped on a loss that is not finite")

    def last_steps(self, course: Course) -> list[float]:
        """Their norms."""
        return [course.step(self.batches[n], n)["grad_norm"] for n in range(RESUMED_AT, STEPS)]

    def save(self, course: Course, name: str) -> None:
        """Into a folder of this name, whole once every rank continues."""
        self.make(name)
        course.trainer.save(self.folder / name)
        course.trainer.finish_save(wait=True)
        dist.barrier()

    def make(self, name: str) -> None:
        """A folder of this name, made once every rank continues."""
        if self.ranks.rank == 0:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir()
        dist.barrier()


def named(name: str, course: Course) -> dict[str, Any]:
    """The weights, under a common name."""
    return {f"{name}/{tensor}": value for tensor, value in course.weights().items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
