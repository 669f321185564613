"""Tests of a trainer that declares ``adopt``."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from astraflow_core.protocols.trainer import AdoptsWeights
from astraflow_testing.conformance._checks import capability
from astraflow_testing.conformance._models.trainer_rig import (
    DEMANDS,
    Exported,
    TrainerRig,
    exported,
    ragged_batch,
    train,
)
from astraflow_testing.conformance.subject import Subject
from astraflow_wire.model_files.tensor_file import lay_out


def adopts_adapters(rig: TrainerRig) -> None:
    """For the tests of a trainer of adapters: a new trainer continues with those of a version."""
    through, folder = rig.build(), rig.folder("version")
    train(through, range(2))
    expected = exported(through)
    write_export(expected, folder / "adapter_model.safetensors")
    fresh = rig.build()
    first = fresh.logprobs(ragged_batch(), "current")
    cast(AdoptsWeights, fresh).adopt(folder, 2)
    assert exported(fresh) == expected
    assert (fresh.logprobs(ragged_batch(), "current") != first).any()
    train(fresh, [2])
    assert exported(fresh) != expected


def write_export(tensors: Exported, file: Path) -> None:
    """As a RaaS has them."""
    header, specs = lay_out((t.name, t.dtype, t.shape) for t in tensors.values())
    with file.open("wb") as out:
        out.write(header)
        for spec in specs:
            out.seek(spec.start)
            out.write(tensors[spec.name].data)


class AdoptTests:
    """Part of :class:`astraflow_testing.conformance.trainer.TrainerConformance`."""

    @capability("adopt")
    def test_adopted_weights_are_exported_to_the_bit(
        self, component: Subject, rig: TrainerRig
    ) -> None:
        through, folder = rig.build(), rig.folder("adopted")
        train(through, range(2))
        through.save_model(folder)
        expected = exported(through)
        train(through, [2])
        for name, trainer in (("a fresh trainer", rig.build()), ("a trained one", through)):
            cast(AdoptsWeights, trainer).adopt(folder, 2)
            DEMANDS.that(
                exported(trainer) == expected,
                f"{name} exports other weights after adopt()",
                "the next export is bitwise that of the adopted weights",
            )
            train(trainer, [2])
            DEMANDS.that(
                exported(trainer) != expected,
                f"{name} does not learn after adopt()",
                "the next step trains the adopted weights",
            )
